"""What the log core asks of its caller, and the settings the caller gives it.

The order of effects can't be got wrong: whatever depends on the disk is not handed out before
`LogMember.persisted` has been called for the `Persist` it depends on, and there is one `Persist`
at a time. So the caller sends at once all that it is given.
"""

from dataclasses import dataclass
from math import inf

import msgspec

from pgherd_sidecar.core.consensus.model.blocks import Block
from pgherd_sidecar.core.consensus.model.messages import Message


@dataclass(frozen=True, slots=True)
class Control:
    """What a member must not forget besides its blocks.

    `commit_position` is a lower bound, written along when something else must be written; it
    lets a restart tell a damaged log from a torn one.

    `incomplete`: damage has ended the log before what this member may have acknowledged. It gives
    no vote until a proposer of this term or a later one has fed it [D6]. Only storage sets it, and
    begins a new term with it.
    """

    term: int = 0
    vote: str | None = None
    commit_position: int = 0
    incomplete: bool = False


class Persist(msgspec.Struct, frozen=True):
    """Make durable, in this order: `control`, the truncation, the blocks.

    Attributes:
        ticket: to be given to `LogMember.persisted` when all of it is on stable storage.
        control: None when unchanged.
        truncate_after: drop every block after this position; None for no truncation.
        blocks: to be appended.
    """

    ticket: int
    control: Control | None
    truncate_after: int | None
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read blocks from the log for `peer`, from the one that starts at `first` on.

    Hand it back to `LogMember.fetched` with the blocks: at least one, even if it is larger than
    `max_bytes`; none only if the log no longer holds `first`, or no block starts there. If it is
    damaged, call `LogMember.damaged` instead.
    """

    peer: str
    term: int
    first: int
    max_bytes: int
    #: the peer's own copy is damaged [D5]
    mends: bool = False


class Effects(msgspec.Struct):
    """Everything to do after one or several inputs. Order within `send` matters per peer.

    `mend`: blocks to be written into their places again, then `LogMember.mended` is to be called.
    """

    send: list[tuple[str, Message]] = []
    persist: Persist | None = None
    fetch: list[Fetch] = []
    mend: tuple[Block, ...] = ()


class PendingEffects:
    """Effects that collect until the caller takes them, for all parts of a member."""

    __slots__ = ("effects",)

    def __init__(self) -> None:
        self.effects = Effects()

    def send(self, peer: str, message: Message) -> None:
        """Add a message."""
        self.effects.send.append((peer, message))

    def take_effects(self) -> Effects:
        """Return what has collected."""
        effects, self.effects = self.effects, Effects()
        return effects


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the protocol, in seconds of the caller's clock. Safety depends on none of them.

    Attributes:
        heartbeat_s: how often an idle proposer lets itself be heard.
        election_min_s: a proposer heard of less than this ago is alive: no votes for others.
        election_max_s: each member draws the silence it bears between the two.
        evict_s: a proposer evicts members it has not heard for so long; never if infinite.
    """

    heartbeat_s: float = 0.1
    election_min_s: float = 1.0
    election_max_s: float = 2.0
    evict_s: float = inf


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on memory and on the size of messages, in bytes.

    Attributes:
        submission: largest single submission.
        block: a block is filled with submissions up to this size.
        pending: submissions waiting at the proposer for the next block.
        inflight: blocks sent to one peer and not acknowledged; one block may exceed it.
        fetch: blocks read at once for a lagging peer.
    """

    submission: int = 64 << 20
    block: int = 1 << 20
    pending: int = 128 << 20
    inflight: int = 16 << 20
    fetch: int = 1 << 20
