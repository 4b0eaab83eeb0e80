"""A model of a PostgreSQL server as the commit path sees it. Free of IO, and of time.

Modelled are rows with their versions, snapshots at READ COMMITTED and REPEATABLE READ, locks of
rows, of the one table and of tokens, each with a queue, cycles of waiting sessions, transactions
that end, ``pgherd.applied``, and a crash that loses the last asynchronous commits and gives their
xids again. ``tests/integration/test_model_server.py`` runs the same schedules against a real one.

Not modelled are the strengths of row locks below FOR UPDATE, savepoints, and what PostgreSQL does
with a queue in which two kinds of table lock wait: it may let a later one pass to end a deadlock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

TABLE: Final = "table"
SHARED, EXCLUSIVE = "shared", "exclusive"

Key = int | str | tuple[str, int]
"""What can be locked: a row, the table, a token."""


class Violation(AssertionError):
    """An invariant of the commit path does not hold; the text begins with its name."""


@dataclass(slots=True)
class Lock:
    """A lock: who holds it in which mode, and who waits, first come first."""

    holders: dict[int, str] = field(default_factory=dict)
    queue: list[tuple[int, str]] = field(default_factory=list)

    def in_the_way(self, pid: int, mode: str) -> list[int]:
        """Those for whom a process has to wait: holders, and those that wait before it."""
        ahead = [*self.holders.items()]
        for waiter in self.queue:
            if waiter[0] == pid:
                break
            ahead.append(waiter)
        return [one for one, held in ahead if one != pid and EXCLUSIVE in (mode, held)]


@dataclass(slots=True)
class ServerTransaction:
    """A transaction that has not ended.

    Attributes:
        repeatable: it reads with one snapshot (REPEATABLE READ).
        snapshot: so many commits are visible to it; None before its first statement.
        pending: what it has written, by row.
    """

    xid: int
    repeatable: bool
    snapshot: int | None = None
    pending: dict[int, int] = field(default_factory=dict)


@dataclass
class Server:
    """What one server knows.

    Attributes:
        applied: rows (gid, prev) of ``pgherd.applied`` in the order in which they became visible.
            Each commit adds one, so the length of this list is a snapshot.
        written: GIDs of the writesets whose rows are there, in that order.
        status: of transactions, by xid.
        versions: of each row, as the number of the commit and the value.
        open: transactions by process.
        tokens: numbers of the batches whose tokens the applier holds.
        flushed: so many rows of ``applied`` survive a crash.
    """

    applied: list[tuple[int, int]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    status: dict[int, str] = field(default_factory=dict)
    versions: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    open: dict[int, ServerTransaction] = field(default_factory=dict)
    locks: dict[Key, Lock] = field(default_factory=dict)
    wants: dict[int, Key] = field(default_factory=dict)
    tokens: set[int] = field(default_factory=set)
    flushed: int = 0
    next_xid: int = 700

    @property
    def last_gid(self) -> int:
        """The newest visible GID."""
        return self.applied[-1][0] if self.applied else 0

    # ---- transactions ------------------------------------------------------------------------

    def begin(self, pid: int, *, repeatable: bool = False) -> int:
        """Begin a transaction; return its xid."""
        self.next_xid += 1
        self.status[self.next_xid] = "in progress"
        self.open[pid] = ServerTransaction(self.next_xid, repeatable)
        return self.next_xid

    def _see(self, pid: int) -> int:
        """Take a snapshot for a statement, or keep the one that the transaction has."""
        transaction = self.open[pid]
        if transaction.snapshot is None or not transaction.repeatable:
            transaction.snapshot = len(self.applied)
        return transaction.snapshot

    def base(self, pid: int) -> int:
        """The newest GID in the snapshot of a statement that begins now."""
        seen = self._see(pid)
        return self.applied[seen - 1][0] if seen else 0

    def read(self, pid: int, row: int) -> int | None:
        """A row's value in a statement that begins now; None if there is no row."""
        seen, pending = self._see(pid), self.open[pid].pending
        if row in pending:
            return pending[row]
        visible = [value for number, value in self.versions.get(row, []) if number <= seen]
        return visible[-1] if visible else None

    def is_unchanged(self, pid: int, row: int) -> bool:
        """Whether a transaction with one snapshot may lock a row: no later version is there.

        PostgreSQL fails the statement with 40001 else, before it waits for anybody and after that.
        """
        transaction, versions = self.open[pid], self.versions.get(row)
        seen = transaction.snapshot
        late = bool(versions) and seen is not None and versions[-1][0] > seen  # type: ignore[index]
        return not (transaction.repeatable and late)

    def write(self, pid: int, row: int, value: int) -> None:
        """Write a row whose lock is held."""
        assert self.locks[row].holders.get(pid) == EXCLUSIVE
        self.open[pid].pending[row] = value

    def show(self, gid: int, prev: int, written: Sequence[int], rows: dict[int, int]) -> bool:
        """Make a link and its rows visible.

        Returns:
            False if a link of its GID or predecessor is there, as they are unique.

        Raises:
            Violation: it may not become visible now.
        """
        if any(gid == g or prev == p for g, p in self.applied):
            return False
        if gid <= self.last_gid or prev != self.last_gid:
            raise Violation(f"order: GID {gid} after {prev} became visible after {self.last_gid}")
        self.applied.append((gid, prev))
        self.written += written
        for row, value in rows.items():
            self.versions.setdefault(row, []).append((len(self.applied), value))
        return True

    def end(self, pid: int, status: str) -> None:
        """A transaction ends; its locks are released after its commit is visible."""
        transaction = self.open.pop(pid, None)
        if transaction is not None:
            self.status[transaction.xid] = status
        self.release(pid)

    # ---- locks -------------------------------------------------------------------------------

    def lock(self, pid: int, key: Key, mode: str = EXCLUSIVE) -> bool:
        """Take a lock, or queue for it; ask again until it is got."""
        lock = self.locks.setdefault(key, Lock())
        if lock.holders.get(pid) in (mode, EXCLUSIVE):
            return True
        if lock.in_the_way(pid, mode):
            if self.wants.get(pid) != key:
                self.wants[pid] = key
                lock.queue.append((pid, mode))
            return False
        if self.wants.pop(pid, None) is not None:
            lock.queue = [waiter for waiter in lock.queue if waiter[0] != pid]
        lock.holders[pid] = mode
        return True

    def blockers(self, pid: int) -> list[int]:
        """Those that a process waits for, by locks."""
        key = self.wants.get(pid)
        if key is None:
            return []
        lock = self.locks[key]
        mode = next(mode for waiter, mode in lock.queue if waiter == pid)
        return lock.in_the_way(pid, mode)

    def in_deadlock(self, pid: int, also: Callable[[int], Sequence[int]] = lambda pid: ()) -> bool:
        """Whether a process waits for itself, in the end.

        Args:
            also: those that a process waits for on locks that are not kept here.
        """
        reached: set[int] = set()
        left = [*self.blockers(pid), *also(pid)]
        while left:
            one = left.pop()
            if one == pid:
                return True
            if one not in reached:
                reached.add(one)
                left += [*self.blockers(one), *also(one)]
        return False

    def release(self, pid: int) -> None:
        """A process has no locks any more, and waits for none."""
        self.wants.pop(pid, None)
        for key, lock in list(self.locks.items()):
            lock.holders.pop(pid, None)
            lock.queue = [waiter for waiter in lock.queue if waiter[0] != pid]
            if not lock.holders and not lock.queue:
                del self.locks[key]

    # ---- crash -------------------------------------------------------------------------------

    def crash(self, kept: int) -> None:
        """Lose all that is not flushed, but for so many rows of ``applied``, and all sessions."""
        del self.applied[max(kept, self.flushed) :]
        self.written = [gid for gid in self.written if gid <= self.last_gid]
        end = self.flushed = len(self.applied)
        for row, versions in self.versions.items():
            self.versions[row] = [version for version in versions if version[0] <= end]
        self.next_xid = 700 + len(self.applied)  # xids of what was lost come again
        self.status.clear()
        self.open.clear()
        self.locks.clear()
        self.wants.clear()
