"""The ordered log: a replicated, uniform-reliable total order of opaque entries. Free of IO.

It is Neon's walproposer/safekeeper protocol with blocks of entries in place of WAL, between
members that come and go. Every member is a safekeeper with a log on disk; one is elected
proposer and decides the order; an entry is committed when a quorum has flushed it. The rules and
invariants are numbered in docs/protocol.md.

Use, in the order that matters::

    if storage.fresh:
        storage.reset(LogBase(membership=Membership.founded(...)))   to found a cluster
        storage.reset(base)           to join one: a partner's `member.base_at(oldest_needed)`
    member = LogMember(name, control=storage.control, log=storage.index, disk=..., ...)

    # after each input (or a few of them):
    member.tick(now)                          at the latest at member.deadline_s
    member.receive(peer, message, now)        RemoteProtocolError: close that link, go on
    member.meet(peer, disk)                   a link is up; before anything is received from it
    member.submit(data, count, now)           False: keep it, submit it later
    member.change_membership(...)             until `member.membership` says that it is so
    member.persisted(ticket, now)
    member.fetched(fetch, blocks, now)
    member.ask_barrier(now)                   see `barrier`
    member.damaged(position, now)             what was to be read or fetched is damaged
    member.mended()

    effects = member.take_effects()
    effects.send      send now, in this order per peer; losing any of it is allowed
    effects.persist   write and flush, then persisted(ticket); at most one is under way
    effects.fetch     read from the log, then fetched(fetch, blocks)
    effects.mend      write these blocks into their places again and flush, then mended()

Nothing in `send` waits for `persist`: what does is handed out after `persisted`. So an
acknowledgement before the flush can't be written by mistake.

* **Delivery.** Entries up to `commit_position` are in the total order for good and on this
  member's disk; the caller reads them from its storage. The GID of an entry is its position. A
  commit position is always the end of a block, and is not less than before a restart only as far
  as `Control` had it saved.
* **Submissions** may be lost (link broken, proposer changed, its queue full) and may then be
  ordered twice. The caller gives its entries an identity, keeps each until it sees it committed,
  and submits it again when (`term`, `proposer`) changes, when the link to the proposer was made
  anew, or after a while.
* **Barriers.** When `barrier` has the number that `ask_barrier` returned, all that was acknowledged
  before that call is at its position or before. The position is reached when it is committed here;
  ask again where (`term`, `proposer`) changes before, and say `drop_barriers` if nobody waits.
* **The no-op.** The first block of each term is the proposer's `noop`; callers skip it.
* **Memberships** are blocks of the kind `MEMBERSHIP`, which callers skip. `component` says whether
  anything can be ordered here. The log before `restart_position` may be trimmed at no loss. When
  `behind` is not 0, the log must begin anew (`storage.reset`) with a copy of what it lacks.
* **Failure of the disk**: stop calling; a member that can't persist is a member that is down.
* **Effects of one `take_effects`** cover all inputs since the last one: taking them after several
  received messages saves messages and flushes.
"""

from pgherd_sidecar.core.consensus.elections import Component
from pgherd_sidecar.core.consensus.member import LogMember
from pgherd_sidecar.core.consensus.model.blocks import (
    ENTRIES,
    MEMBERSHIP,
    Block,
    LogBase,
    LogIndex,
    TermStart,
)
from pgherd_sidecar.core.consensus.model.effects import (
    Control,
    Effects,
    Fetch,
    Limits,
    Persist,
    Timing,
)
from pgherd_sidecar.core.consensus.model.errors import (
    LocalProtocolError,
    LogError,
    RemoteProtocolError,
)
from pgherd_sidecar.core.consensus.model.identity import Identity, objection
from pgherd_sidecar.core.consensus.model.messages import Message
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership, View
from pgherd_sidecar.core.consensus.model.split import SplitMessage
from pgherd_sidecar.core.consensus.reading import Barrier
from pgherd_sidecar.core.consensus.roles import Role

__all__ = [
    "ENTRIES",
    "MEMBERSHIP",
    "Barrier",
    "Block",
    "Component",
    "Control",
    "Effects",
    "Fetch",
    "Identity",
    "Limits",
    "LocalProtocolError",
    "LogBase",
    "LogError",
    "LogIndex",
    "LogMember",
    "Member",
    "Membership",
    "Message",
    "Persist",
    "RemoteProtocolError",
    "Role",
    "SplitMessage",
    "TermStart",
    "Timing",
    "View",
    "objection",
]
