"""Read barriers: a position at or behind everything that was acknowledged before one was asked for.

A member asks all voters how far their logs go; a majority's answers are enough, and nothing is
written. All that was committed before is in the most advanced log among them, so it is not beyond
the end of that one. Neither a proposer nor a clock is needed: an election under way does not
matter, since it drops nothing that is committed [F1-F5].

The position may lie beyond what is committed. A reader waits until it is committed here, and
asks again if term or proposer have changed meanwhile, since the next log may be shorter.

Free of IO. Lost by a restart, and so are those who wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from pgherd_sidecar.core.consensus.model.messages import BarrierReply, BarrierRequest
from pgherd_sidecar.core.consensus.model.quorum import Membership
from pgherd_sidecar.core.consensus.safekeeper import Safekeeper


@dataclass(frozen=True, slots=True)
class Barrier:
    """The newest round that has ended: all that was acknowledged before it is at `position`.

    It serves those who were told `number` by `LogMember.ask_barrier`, or a lower one.
    """

    number: int
    position: int


_NONE = Barrier(0, 0)


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

    def count_answer(self, voter: str, reply: BarrierReply) -> None:
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


class ReadBarriers:
    """A member's questions for barriers, and its answers to those of others.

    Args:
        name: of the member.
        disk: identity of the disk its log is on.
        keeper: of the log.
        patience_s: after so long it asks again: messages may be lost.
        rng: for the first number.
    """

    def __init__(
        self, name: str, disk: str, keeper: Safekeeper, patience_s: float, rng: Random
    ) -> None:
        self._name = name
        self._disk = disk
        self._keeper = keeper
        self._patience_s = patience_s
        self._rng = rng
        self._rounds: Rounds | None = None

    @property
    def newest(self) -> Barrier:
        """The newest barrier that has ended."""
        return _NONE if self._rounds is None else self._rounds.ended

    @property
    def ask_s(self) -> float:
        """When to ask again."""
        return inf if self._rounds is None else self._rounds.ask_s

    def ask(self, now: float) -> int:
        """Return the number of the next round to begin."""
        if self._rounds is None:
            self._rounds = Rounds(self._rng)
        return self._rounds.ask(now)

    def drop(self) -> None:
        """Note that nobody waits any more."""
        if self._rounds is not None:
            self._rounds.give_up()

    def questions(self) -> Sequence[tuple[str, BarrierRequest]]:
        """Begin the round that is due, if one is, and return what is to be sent for it."""
        rounds = self._rounds
        if rounds is None or not rounds.due:
            return ()
        rounds.begin(self._patience_s)
        return self._to_voters(rounds)

    def repeated(self, now: float) -> Sequence[tuple[str, BarrierRequest]]:
        """Ask again if it is time: the membership may be another one by now, too."""
        rounds = self._rounds
        if rounds is None or now < rounds.ask_s:
            return ()
        rounds.ask_s = now + self._patience_s  # before the round may end here
        return self._to_voters(rounds)

    def _to_voters(self, rounds: Rounds) -> list[tuple[str, BarrierRequest]]:
        """Ask all whose answers may be needed; this member answers itself at once."""
        own = self.answer(BarrierRequest(rounds.running))
        if own is not None:
            rounds.count_answer(self._name, own)
        if not rounds.running:
            return []
        membership = self._keeper.index.membership
        asked = {*membership.voters, *rounds.membership.voters} - {self._name}
        return [(voter, BarrierRequest(rounds.running)) for voter in sorted(asked)]

    def answer(self, request: BarrierRequest) -> BarrierReply | None:
        """Return how far this log goes; None if it may lack what was acknowledged [F5]."""
        if self._keeper.incomplete or self._keeper.abstains:
            return None
        return self._reply(request.number)

    def _reply(self, number: int) -> BarrierReply:
        index = self._keeper.index
        return BarrierReply(number, index.last_term, index.last, index.membership, self._disk)

    def count_answer(self, voter: str, reply: BarrierReply) -> None:
        """Count an answer."""
        if self._rounds is not None:
            self._rounds.count_answer(voter, reply)
