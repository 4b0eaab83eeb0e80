"""Messages between the members of one log.

No message names its sender or receiver: the link knows them. Positions and terms are unsigned;
position 0 is "before the first entry". The numbers in brackets are those of docs/protocol.md.

The frequent ones are structs of msgspec: these are made faster than frozen dataclasses.
"""

from dataclasses import dataclass

import msgspec

from pgherd_sidecar.core.consensus.model.blocks import Block, LogBase, TermStart
from pgherd_sidecar.core.consensus.model.quorum import Member, Membership
from pgherd_sidecar.core.consensus.model.split import SplitMessage


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote in `term`; with `pre`, whether it would get one [E1, E2]."""

    term: int
    pre: bool


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote, persisted before it is sent, how far the voter's log goes, and who votes by it [E3].

    A pre-vote promises nothing. `disk` is the voter's, whose promise this is [V6].
    """

    term: int
    pre: bool
    last_position: int
    history: tuple[TermStart, ...]
    membership: Membership
    disk: str = ""


@dataclass(frozen=True, slots=True)
class Newer:
    """The receiver's term is over: the sender has seen `term` [E4]."""

    term: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """An elected proposer asks the most advanced of its voters for blocks [R2]."""

    term: int
    first: int


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Blocks for a recovering proposer; none if the voter has trimmed them away [R2]."""

    term: int
    first: int
    blocks: tuple[Block, ...]


class Append(msgspec.Struct, frozen=True, gc=False):
    """Blocks that follow (prev_position, prev_term); without blocks a heartbeat or probe [A1].

    `commit_bound`: what the receiver has flushed itself is committed up to here, because enough
    other members have flushed it [K3]. `restart_position`: every member has flushed up to here, so
    nobody needs it any more [T1]. `lonely`: the proposer has not heard a majority lately [P1].
    """

    term: int
    prev_position: int
    prev_term: int
    commit_bound: int
    restart_position: int
    blocks: tuple[Block, ...]
    lonely: bool = False


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The sender's log equals the proposer's up to `position`, flushed [A4]."""

    term: int
    position: int


@dataclass(frozen=True, slots=True)
class Reject:
    """The sender's log has no (prev_position, prev_term); its history says what it has [A3]."""

    term: int
    prev_position: int
    last_position: int
    history: tuple[TermStart, ...]


class Commit(msgspec.Struct, frozen=True, gc=False):
    """A new commit bound when no Append will carry it soon; also "I am recovering" [K4]."""

    term: int
    commit_bound: int


class Submit(msgspec.Struct, frozen=True, gc=False):
    """`count` entries that the sender wants in the order; the proposer decides where [A0]."""

    count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The proposer's log begins after `base`, and the receiver needs what was before [T3].

    Whoever has no database that belongs to a position begins anew right there.
    """

    term: int
    base: LogBase


@dataclass(frozen=True, slots=True)
class Mend:
    """The sender's block at `first`, which `term` wrote, is damaged: who has it [D5]?"""

    term: int
    first: int


@dataclass(frozen=True, slots=True)
class Mended:
    """The block at `first` and some that follow; none if the sender has trimmed it [D5]."""

    first: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The sender wants the membership changed: a member to join, others to leave [V3].

    Who leaves is named with its disk, so that its successor is not meant [V6]; with an empty one,
    whoever has the name.
    """

    join: Member | None = None
    leave: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BarrierRequest:
    """A reader asks a voter how far its log goes [F1]."""

    number: int


@dataclass(frozen=True, slots=True)
class BarrierReply:
    """How far the sender's log goes, flushed or not, and who votes by it [F3, F4].

    It promises nothing. `number` is the request's; `disk` is the one that all this is on [V6].
    """

    number: int
    last_term: int
    last_position: int
    membership: Membership
    disk: str = ""


@dataclass(frozen=True, slots=True)
class PollRequest:
    """The sender asks what is none of the log's business; `number` tells the answers apart."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class PollReply:
    """What the sender says to the question of that number; empty if it can't say."""

    number: int
    data: bytes


Message = (
    VoteRequest
    | Vote
    | Newer
    | FetchRequest
    | FetchReply
    | Append
    | Ack
    | Reject
    | Commit
    | Submit
    | Trimmed
    | Change
    | Mend
    | Mended
    | BarrierRequest
    | BarrierReply
    | SplitMessage
    | PollRequest
    | PollReply
)
