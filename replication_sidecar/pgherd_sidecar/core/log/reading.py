"""Read barriers: a position at or behind everything that was acknowledged before one was asked for.

A member asks all voters how far their logs go; a majority's answers are enough, and nothing is
written. What was committed before is in the most advanced log among them, so it is not beyond the
end of that one. Neither a proposer nor a clock is needed: an election under way does not matter,
since it drops nothing that is committed [F1-F5].

The position may lie beyond what is committed. Whoever asked waits until it is committed here, and
asks again where term or proposer have changed meanwhile, since what follows may be shorter.

``Reading`` is the part of `LogMember` between its log (damage.py) and the caller's interface. Free
of IO. Lost by a restart, and so are those who wait.
"""

from dataclasses import dataclass
from math import inf
from random import Random

from pgherd_sidecar.core.log.damage import Damage
from pgherd_sidecar.core.log.messages import BarrierReply, BarrierRequest, Message
from pgherd_sidecar.core.log.quorum import Membership


@dataclass(frozen=True, slots=True)
class Barrier:
    """The newest round that has ended: all that was acknowledged before it is at `position`.

    It serves those who were told `number` by `LogMember.ask_barrier`, or a lower one.
    """

    number: int
    position: int


class Rounds:
    """One round under way at most, and whoever has to wait for the next one.

    Invariants:
        F2: who asks while a round is under way is served by the next one.
        Numbers begin anywhere, so that an answer to a former process fits none of this one's.
    """

    def __init__(self, rng: Random) -> None:
        self.ended = Barrier(rng.getrandbits(62), 0)
        #: the number of the round under way, 0 if there is none
        self.running = 0
        #: when to ask again
        self.ask_s = inf
        self._begun = self.ended.number
        #: since when somebody waits for a round that has not begun
        self._wanted_s: float | None = None
        self._replies: dict[str, BarrierReply] = {}

    @property
    def due(self) -> bool:
        """Somebody waits for a round that has not begun, and it may begin."""
        return self._wanted_s is not None and not self.running

    def ask(self, now: float) -> int:
        """Return the number of the next round to begin."""
        if self._wanted_s is None:
            self._wanted_s = now
        return self._begun + 1

    def begin(self, patience_s: float) -> None:
        """Begin the round that somebody waits for."""
        assert self._wanted_s is not None
        self._begun += 1
        self.running = self._begun
        self.ask_s, self._wanted_s = self._wanted_s + patience_s, None
        self._replies = {}

    def give_up(self) -> None:
        """Nobody waits any more."""
        self.running, self.ask_s, self._wanted_s = 0, inf, None

    def take(self, voter: str, reply: BarrierReply) -> None:
        """Count an answer, if it is one to the round under way; a later one replaces it [F2]."""
        if self.running and reply.number == self.running:
            self._replies[voter] = reply
            self._judge()

    @property
    def membership(self) -> Membership:
        """The newest one that the answers tell of."""
        if not self._replies:
            return Membership()
        return max(self._replies.values(), key=_advancement).membership

    def _judge(self) -> None:
        """End the round if those who have answered are enough [F3, F4]."""
        best = max(self._replies.values(), key=_advancement)
        voters = best.membership
        valid = [who for who, one in self._replies.items() if voters.knows(who, one.disk)]
        if voters.has_majority(valid):
            self.ended = Barrier(self.running, best.last_position)
            self.running, self.ask_s = 0, inf


def _advancement(reply: BarrierReply) -> tuple[int, int]:
    return reply.last_term, reply.last_position


class Reading(Damage):
    """A member that can be asked for a barrier, and answers those of others."""

    _rounds: Rounds | None = None

    @property
    def barrier(self) -> Barrier:
        """The newest barrier that has ended; compare its number with that of `ask_barrier`."""
        return Barrier(0, 0) if self._rounds is None else self._rounds.ended

    def ask_barrier(self, now: float) -> int:
        """Ask for a barrier; all who do so before the next `take_effects` share one round [F2].

        Returns:
            The number of the round. When `barrier` has reached it, and `commit_position` has
            reached the barrier's position, all is here that was acknowledged before this call. If
            term or proposer change before that, ask again.
        """
        if self._rounds is None:
            self._rounds = Rounds(self._rng)
        return self._rounds.ask(now)

    def drop_barriers(self) -> None:
        """Note that nobody waits for a barrier any more: no more questions are sent."""
        if self._rounds is not None:
            self._rounds.give_up()

    @property
    def _ask_barrier_s(self) -> float:
        return inf if self._rounds is None else self._rounds.ask_s

    def _questions(self) -> list[tuple[str, Message]]:
        """Begin the round that is due, and return what is to be sent for it."""
        rounds = self._rounds
        if rounds is None or not rounds.due:
            return []
        rounds.begin(self._timing.heartbeat_s)
        return self._to_voters(rounds)

    def _to_voters(self, rounds: Rounds) -> list[tuple[str, Message]]:
        """Ask all whose answers may be needed; this member answers itself at once."""
        if not (self._keeper.incomplete or self._keeper.abstains):
            rounds.take(self.name, self._barrier_reply(rounds.running))
        if not rounds.running:
            return []
        asked = {*self.membership.voters, *rounds.membership.voters} - {self.name}
        return [(voter, BarrierRequest(rounds.running)) for voter in sorted(asked)]

    def _ask_again(self, now: float) -> None:
        """Messages may be lost, and the membership may be another one by now."""
        if self._rounds is not None and now >= self._rounds.ask_s:
            self._rounds.ask_s = now + self._timing.heartbeat_s  # before the round may end here
            self._effects.send += self._to_voters(self._rounds)

    def _barrier_reply(self, number: int) -> BarrierReply:
        index = self._keeper.index
        return BarrierReply(number, index.last_term, index.last, index.membership, self._disk)

    def _handle_barrier_request(self, sender: str, request: BarrierRequest) -> None:
        if self._keeper.incomplete or self._keeper.abstains:
            return  # it may have lost what it has acknowledged [F5]
        self._effects.send.append((sender, self._barrier_reply(request.number)))

    def _handle_barrier_reply(self, sender: str, reply: BarrierReply) -> None:
        if self._rounds is not None:
            self._rounds.take(sender, reply)
