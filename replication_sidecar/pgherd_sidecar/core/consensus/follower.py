"""The follower's half of a member: whom it hears, and what it has acknowledged to it.

An object serves until the proposer or the role changes, and is lost with that.
"""

from typing import Final

from pgherd_sidecar.core.consensus.model.messages import Ack
from pgherd_sidecar.core.consensus.roles import Role
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper


class Follower:
    """A member that follows its term's proposer, or waits to hear of one.

    Attributes:
        proposer: the term's, None until it is heard of.
        heard_s: when it was heard last.
        ended: its process has ended, as far as is known [E8].
        ack_due: it waits for an answer, also to what changes nothing.
    """

    __slots__ = ("_acked", "ack_due", "ended", "heard_s", "proposer")

    role: Final = Role.FOLLOWER
    queue: Final = None

    def __init__(self, proposer: str | None, now: float) -> None:
        self.proposer = proposer
        self.heard_s = now
        self.ended = False
        self.ack_due = False
        self._acked = 0

    def hears_proposer(self, now: float, within_s: float) -> bool:
        """Tell whether the proposer is alive, for all that is known [E2, E8]."""
        return self.proposer is not None and not self.ended and now - self.heard_s < within_s

    def acknowledgement(self, keeper: Safekeeper) -> Ack | None:
        """Return what is to be told to the proposer, if anything is new [A4]."""
        position = keeper.ack_position
        if (self.ack_due or position > self._acked) and keeper.durable_term == keeper.term:
            self._acked = position
            self.ack_due = False
            return Ack(keeper.term, position)
        return None
