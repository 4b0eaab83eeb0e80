"""What becomes of sessions in the way of what is certain to commit. Free of IO.

What a writer or a certified local transaction does is certain to commit, and all after it wait, so
a session that holds a lock they need has to give way (Postgres-R(SI) 4.2, Slony-II 12.3). `RULES`
says how, by the situation of that session and by how long it has been in it.

A statement of a client is not cancelled, except in COMMIT, where ``certify()`` notices: the client
would hear 57014, "canceling statement due to user request", which no library takes for a reason to
repeat a transaction. PostgreSQL offers no other way to fail a statement from outside: 40P01 needs a
wait for a lock that its detector has not looked at yet, and the 40001 of recovery conflicts is sent
by the startup process of a standby only. A lost session (57P01) is known to every pool. Where rows
are captured natively the module makes 40001 of a cancel, so `Act.GIVE_WAY` costs no session
(``pgherd.give_way``).

Nothing survives a restart. Times are seconds of the caller's clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from pgherd_sidecar.core.commit.chain import Chain, LocalLink

_DETECTOR_S: Final = 0.2
"""Twice the ``deadlock_timeout`` of the sessions (046_roles.sql): the detector has looked."""
_IDLE_S: Final = 0.1
"""Longer than a program takes to think."""
_GRACE_S: Final = 0.05
_BUSY_S: Final = 0.5
_STUCK_S: Final = 1.0
_COMMIT_MAX_S: Final = 10.0
_XID_MASK: Final = (1 << 32) - 1


class Situation(Enum):
    """How a session stands in the way."""

    #: PREPARE TRANSACTION. It has written no replicated row, or it could not have been prepared,
    #: but it may have locked some, and only its coordinator would ever end it.
    PREPARED = "prepared, and holds a lock that is needed for what is certain to commit"
    #: Ordered before what it is in the way of, which waits for its turn, as it should.
    ORDERED_BEFORE = "ordered before"
    #: Certified with a later GID. It holds a row lock only (C9): once it is cancelled it rolls
    #: back, its client hears 08007, and its rows are written in its place.
    CERTIFIED_LATER = "certified with a later GID"
    #: Likewise, and it was cancelled.
    YIELDING = "certified, and does not yield"
    #: The verdict is on its way, and if it lost it is told at once.
    AWAITS_VERDICT = "awaits its verdict"
    #: Began to wait for a lock itself: PostgreSQL's deadlock detector may end it with 40P01.
    BEGAN_TO_WAIT = "has begun to wait for a lock"
    #: The detector, which looks once, has looked in vain. Another session holds that lock and
    #: can't commit before this one gives way.
    WAITS_FOR_LOCK = "holds a lock for too long, and waits for another"
    #: Works on its transaction: it may reach COMMIT, where it is told 40001.
    WORKS = "its statement holds a lock for too long"
    #: Works, with pauses that a program takes to think.
    PAUSES = "holds a lock that is needed for what is certain to commit"
    #: Sends a large transaction: it is told 40001 with its next piece.
    SENDS_PIECES = "sends pieces, and holds a lock for too long"
    #: PostgreSQL has no way to fail the transaction of an idle session.
    IDLE = "is idle, and holds a lock that is needed for what is certain to commit"
    #: The first of the chain waits for nobody: a commit takes no time (C2).
    FIRST_OF_CHAIN = "certified, but does not commit"


class Act(Enum):
    """What to do about a session."""

    #: Cancel it in its COMMIT; it is marked as one that yields.
    CANCEL = "cancel"
    #: End the session; autovacuum, which is no client, only has to leave its table, and where the
    #: native module is at work the client hears 40001 and keeps its session.
    GIVE_WAY = "give way"
    #: End the session.
    TERMINATE = "terminate"
    #: ROLLBACK PREPARED.
    ROLL_BACK = "roll back"
    #: Tell it 40001 with its next piece.
    REFUSE_PIECES = "refuse pieces"
    #: Find out what its command locks: the next one like it is to go first.
    REMEMBER_COMMAND = "remember command"


RULES: Final[Mapping[Situation, tuple[tuple[float, Act], ...]]] = {
    Situation.PREPARED: ((2 * _BUSY_S, Act.ROLL_BACK),),
    Situation.ORDERED_BEFORE: (),
    Situation.CERTIFIED_LATER: ((-1.0, Act.CANCEL),),
    Situation.YIELDING: ((_GRACE_S, Act.TERMINATE),),
    Situation.AWAITS_VERDICT: (),
    Situation.BEGAN_TO_WAIT: (),
    Situation.WAITS_FOR_LOCK: ((2 * _BUSY_S, Act.TERMINATE), (-1.0, Act.GIVE_WAY)),
    Situation.WORKS: ((2 * _BUSY_S, Act.TERMINATE), (_BUSY_S, Act.GIVE_WAY)),
    Situation.PAUSES: ((2 * _BUSY_S, Act.TERMINATE),),
    Situation.SENDS_PIECES: ((2 * _BUSY_S, Act.TERMINATE),),
    Situation.IDLE: ((_IDLE_S, Act.TERMINATE),),
    Situation.FIRST_OF_CHAIN: ((_COMMIT_MAX_S, Act.TERMINATE),),
}
"""For each situation: the act once a session has been in the way for longer than so many seconds,
the longest time first. A negative time is at once; before the last one nothing is done."""

_UNCERTIFIED: Final = frozenset(
    {
        Situation.BEGAN_TO_WAIT,
        Situation.WAITS_FOR_LOCK,
        Situation.WORKS,
        Situation.PAUSES,
        Situation.SENDS_PIECES,
        Situation.IDLE,
    }
)


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds what another one waits for, as the server tells it.

    Attributes:
        waiter: pid of the session that waits.
        pid: of the session in the way, 0 if that is a prepared transaction.
        xid: 32 bits of its transaction's, 0 if it has none.
        waits_s: for how long it has waited for a lock itself, 0 if it does not.
        idle_s: for how long it has been idle, 0 if it is not.
        prepared: name of the prepared transaction, None if it is none.
    """

    waiter: int
    pid: int
    xid: int
    waits_s: float = 0.0
    idle_s: float = 0.0
    prepared: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What the caller is to do about one session, if it is still in that transaction.

    Attributes:
        situation: why.
        prepared: as in `Blocker`.
        gid: what is waited for.
    """

    act: Act
    situation: Situation
    pid: int
    xid: int
    prepared: str = ""
    gid: int = 0


class KnownSessions(Protocol):
    """What is asked of the outbox."""

    def awaits_verdict(self, pid: int) -> bool:
        """See ``Outbox``."""

    def sends_pieces(self, pid: int) -> bool:
        """See ``Outbox``."""


def rule(situation: Situation, age_s: float) -> Act | None:
    """The act for a session that has been in the way for so long, None if it is left alone."""
    for longer_s, act in RULES[situation]:
        if age_s > longer_s:
            return act
    return None


class Victims:
    """The sessions in the way, and since when.

    Args:
        chain: certified transactions of this node.
        under_way: those that are not decided.
    """

    def __init__(self, chain: Chain, under_way: KnownSessions) -> None:
        self._chain = chain
        self._under_way = under_way
        self._first_seen: dict[tuple[int, int], float] = {}
        self._commands: set[tuple[int, int]] = set()
        self._refused: set[tuple[int, int]] = set()
        self._first: tuple[int, float] = (0, 0.0)

    def waiting(self, at_work: Mapping[int, int], now: float) -> dict[int, int]:
        """Whose way has to be free: pid and GID of the writers, and of commits that take long."""
        stuck = {
            link.pid: link.gid for link in self._chain.locals() if now - link.since_s > _STUCK_S
        }
        return dict(at_work) | stuck

    def transactions(self, waiting: Mapping[int, int]) -> list[int]:
        """In which transactions these have to have a free way: 32 bits of xids, 0 for writers.

        A session may have committed unnoticed. In its next transaction it waits like any other.
        """
        xids = {(link.pid, link.gid): link.xid & _XID_MASK for link in self._chain.locals()}
        return [xids.get(item, 0) for item in waiting.items()]

    def clear(self) -> None:
        """Nobody's way has to be free."""
        self._first_seen.clear()
        self._commands.clear()
        self._refused.clear()

    def judge(
        self,
        blockers: Iterable[Blocker],
        waiting: Mapping[int, int],
        at_work: Mapping[int, int],
        now: float,
    ) -> list[Order]:
        """Say what to do about the sessions that were seen.

        Args:
            blockers: all that were found in the way of ``waiting``.
            waiting: as it was when the server was asked.
            at_work: the writers now. What was seen in the way of one that has turned to another
                GID since is of no use; a writer itself is never ended.
            now: the time.
        """
        blockers = list(blockers)
        present = waiting.items() & self.waiting(at_work, now).items()
        seen = {(blocker.pid, blocker.xid) for blocker in blockers}
        self._first_seen = {key: self._first_seen.get(key, now) for key in seen}
        self._commands &= seen
        self._refused &= seen
        orders: list[Order] = []
        for blocker in blockers:
            gid = waiting.get(blocker.waiter, 0)
            if (blocker.waiter, gid) in present and blocker.pid not in at_work:
                self._judge(blocker, gid, now, orders)
        self._hurry_first(waiting, now, orders)
        return orders

    def _judge(self, blocker: Blocker, gid: int, now: float, orders: list[Order]) -> None:
        """Apply the rules to one session, unless it was just ended for another one's sake."""
        pid, xid = key = blocker.pid, blocker.xid
        if key not in self._first_seen:
            return
        link = self._certified(pid, xid)
        situation = self._situation(blocker, link, gid)
        if situation in _UNCERTIFIED:
            if self._under_way.sends_pieces(pid):
                orders.append(Order(Act.REFUSE_PIECES, situation, pid, xid))
            if key not in self._commands:
                self._commands.add(key)
                orders.append(Order(Act.REMEMBER_COMMAND, situation, pid, xid))
        age_s = now - self._first_seen[key]
        if situation is Situation.IDLE:
            age_s = min(age_s, blocker.idle_s)
        act = rule(situation, age_s)
        if act is None or (act is Act.GIVE_WAY and key in self._refused):
            return
        if act is Act.CANCEL and link is not None:
            link.yielding = True
        orders.append(Order(act, situation, pid, xid, blocker.prepared or "", gid))
        if act is Act.TERMINATE:
            self._forget(pid)
        elif act is Act.GIVE_WAY:  # it may catch the error, or not look for one: its age counts on
            self._refused.add(key)

    def _situation(self, blocker: Blocker, link: LocalLink | None, gid: int) -> Situation:
        if blocker.prepared is not None:
            return Situation.PREPARED
        if link is not None:
            return _of_certified(link, gid)
        if self._under_way.awaits_verdict(blocker.pid):
            return Situation.AWAITS_VERDICT
        return _of_working(blocker, sends_pieces=self._under_way.sends_pieces(blocker.pid))

    def _certified(self, pid: int, xid: int) -> LocalLink | None:
        """The link of this very transaction; the session may be in a later one by now."""
        for link in self._chain.locals():
            if link.pid == pid and link.xid & _XID_MASK == xid:
                return link
        return None

    def _hurry_first(self, waiting: Mapping[int, int], now: float, orders: list[Order]) -> None:
        """End a transaction that should have committed long ago: nothing is in its way."""
        link = next(iter(self._chain.locals()), None)
        if link is None or link.pid not in waiting or link.prev > self._chain.settled_gid:
            return
        if now < link.waits_until_s:  # something is: the other members
            return
        if self._first[0] != link.gid:
            self._first = (link.gid, now)
        situation = Situation.FIRST_OF_CHAIN
        act = rule(situation, now - self._first[1])
        if act is not None:
            orders.append(Order(act, situation, link.pid, link.xid & _XID_MASK, "", link.gid))
            self._forget(link.pid)

    def _forget(self, pid: int) -> None:
        self._first_seen = {k: since for k, since in self._first_seen.items() if k[0] != pid}


def _of_certified(link: LocalLink, gid: int) -> Situation:
    if link.gid <= gid:  # the same: a batch that writes nothing bears the GID of what it waits for
        return Situation.ORDERED_BEFORE
    return Situation.YIELDING if link.yielding else Situation.CERTIFIED_LATER


def _of_working(blocker: Blocker, *, sends_pieces: bool) -> Situation:
    """The situation of a transaction that has not come to its COMMIT."""
    if blocker.waits_s > 0:
        brief = blocker.waits_s <= _DETECTOR_S
        return Situation.BEGAN_TO_WAIT if brief else Situation.WAITS_FOR_LOCK
    if blocker.idle_s > 0:
        return Situation.IDLE if blocker.idle_s > _IDLE_S else Situation.PAUSES
    return Situation.SENDS_PIECES if sends_pieces else Situation.WORKS
