"""The roles of a member, and what takes it from one to which: all of it is in one table.

Each role is a value that owns what a member has in that role only: `Follower`, `Campaign`,
`Recovery` and `Proposer`. `Elections` holds one of them, and puts another one in its place only as
TRANSITIONS says. The diagram in docs/protocol.md is drawn from the table.
"""

from collections.abc import Mapping
from enum import Enum

from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError


class Role(Enum):
    """The role of a member, besides that of a safekeeper."""

    #: follows a proposer, or waits to hear of one
    FOLLOWER = "follower"
    #: asks whether it would be elected
    PRECANDIDATE = "precandidate"
    #: asks for votes
    CANDIDATE = "candidate"
    #: elected; takes over the most advanced log of its voters
    RECOVERING = "recovering"
    #: orders entries
    PROPOSER = "proposer"


class RoleEvent(Enum):
    """The reasons to change a role, with the statements of docs/protocol.md."""

    #: a member that has no proposer yet hears the one of its term
    PROPOSER_HEARD = "hears the proposer (A1, K4)"
    #: no proposer was heard, or the role came to nothing, for a random time
    TIMEOUT = "timeout (E1)"
    #: the same, and the member may not stand for election
    BARRED_TIMEOUT = "timeout, may not stand (V4, T3, D5, D6, G7)"
    PREVOTED = "quorum of pre-votes (E3)"
    ELECTED = "quorum of votes (E3, R1)"
    #: the log holds all of the donor's
    RECOVERED = "log taken over (R2, R3)"
    #: the donor has trimmed what the log lacks, or the point where the two part
    WITHDRAWN = "log can't be taken over (R1, R2)"
    #: the member enters it, by a message or by giving its vote
    HIGHER_TERM = "higher term (E4)"
    DEPOSED = "steps down (E5, E6, E7, D5, V3)"


_ALWAYS = {RoleEvent.HIGHER_TERM: Role.FOLLOWER}
_TIMED = _ALWAYS | {
    RoleEvent.TIMEOUT: Role.PRECANDIDATE,
    RoleEvent.BARRED_TIMEOUT: Role.FOLLOWER,
}
_UNDECIDED = _TIMED | {RoleEvent.PROPOSER_HEARD: Role.FOLLOWER}

TRANSITIONS: Mapping[Role, Mapping[RoleEvent, Role]] = {
    Role.FOLLOWER: _UNDECIDED,
    Role.PRECANDIDATE: _UNDECIDED | {RoleEvent.PREVOTED: Role.CANDIDATE},
    Role.CANDIDATE: _UNDECIDED
    | {RoleEvent.ELECTED: Role.RECOVERING, RoleEvent.WITHDRAWN: Role.FOLLOWER},
    # a term has one proposer: to hear another one than itself is the other's error
    Role.RECOVERING: _TIMED
    | {RoleEvent.RECOVERED: Role.PROPOSER, RoleEvent.WITHDRAWN: Role.FOLLOWER},
    Role.PROPOSER: _ALWAYS | {RoleEvent.DEPOSED: Role.FOLLOWER},
}


def next_role(role: Role, event: RoleEvent) -> Role:
    """Return the role that an event leads to.

    Raises:
        LocalProtocolError: it can't happen in this role.
    """
    following = TRANSITIONS[role].get(event)
    if following is None:
        raise LocalProtocolError(f"{event.name} can't happen to a {role.value}")
    return following
