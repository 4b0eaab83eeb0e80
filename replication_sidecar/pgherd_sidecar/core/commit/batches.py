"""What the applier has to write, in the order of the chain, and the tokens of its batches.

Work comes as *items*. Consecutive remote writesets collect in one batch until something follows it
that has to wait for it, a local transaction above all, or until some milliseconds have passed; a
batch is one transaction (Slony-II 13.4, "replication backend"). Items that stand alone (DDL, large
transactions, markers) bring a task of their own.

Each item has a batch number whose *token* the applier's connection holds in advance, so that a
local verdict can name a batch which has not begun. Once a batch is visible its token is handed on
to those who were told to wait for it; if nobody was, nobody will be, and a later batch takes it
over. Free of IO; nothing survives: what was not applied is delivered again.

Times are seconds of the caller's clock.
"""

from array import array
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pgherd_sidecar.core.commit.chain import BatchLink, Chain, LocalLink
from pgherd_sidecar.core.replication.entries import FLAG_FINGERPRINT, Writeset
from pgherd_sidecar.core.replication.merge import Item, decode_body, slots

TOKEN_WINDOW = 32
COLLECT_S = 5e-3
"""About what a block takes: the end of one and the beginning of the next are one batch then."""
_BATCH_ROWS = 5_000
_BATCH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RunDdl:
    """Execute a transaction with DDL."""

    writeset: Writeset


@dataclass(frozen=True, slots=True)
class ApplyPieces:
    """Apply a transaction that came in pieces, of which the first is at a position."""

    writeset: Writeset
    first: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """Add a link for a transaction of this node that has committed without one (C1)."""

    xid: int


@dataclass(frozen=True, slots=True)
class PassBy:
    """Add a link for an entry that an administrator has had skipped."""


@dataclass(frozen=True, slots=True)
class Procedure:
    """Run what the caller has queued: it writes no link."""

    run: Callable[[], Awaitable[None]]


Task = RunDdl | ApplyPieces | Adopt | PassBy | Procedure


@dataclass(slots=True, eq=False)
class Work:
    """One item.

    Attributes:
        link: its place in the chain.
        predecessor: the local transaction that must have committed first.
        ripe_s: when a batch has collected long enough.
        writesets: keys and rows of a batch.
        gids: of its writesets.
        compared: bodies of those of them that carry a fingerprint, by GID.
        guarded: the keys of these, without modes.
        task: of an item that is not a batch.
        fresh_catalog: the schema has changed just before it.
        passed: its token was handed on.
    """

    link: BatchLink
    predecessor: LocalLink | None
    ripe_s: float = 0.0
    writesets: list[tuple["array[int]", list[Item]]] = field(default_factory=list)
    gids: list[int] = field(default_factory=list)
    compared: dict[int, bytes] = field(default_factory=dict)
    guarded: set[int] = field(default_factory=set)
    rows: int = 0
    bytes: int = 0
    task: Task | None = None
    fresh_catalog: bool = False
    passed: bool = False


class Batches:
    """The queue of the applier.

    Invariants:

    * items are worked off in the order of their links;
    * a batch that was named by a verdict keeps its number until its token is handed on, and no
      later item takes it over.

    Args:
        chain: the node's commit chain.
        first_batch: number of the first batch; tokens from here on are free.
        collect_s: how long a batch collects that nobody waits for. Others' writesets that come in
            the meantime cost next to nothing more, a batch of their own as much as this one.
        singly_to: up to this GID each writeset is a batch: one of them has failed before.

    Attributes:
        token_limit: the tokens of batches with lower numbers are held, or were handed on.
    """

    def __init__(
        self, chain: Chain, first_batch: int, *, collect_s: float = COLLECT_S, singly_to: int = 0
    ) -> None:
        self.token_limit = first_batch
        self.queued_bytes = 0
        self._chain = chain
        self._collect_s = collect_s
        self._singly_to = singly_to
        self._next_batch = first_batch
        self._next_token = first_batch
        self._skip_to = first_batch
        self._unused: list[int] = []
        self._queue: deque[Work] = deque()
        self._open: Work | None = None
        self._fresh_catalog = False

    # ---- filling the queue -------------------------------------------------------------------

    def add_writeset(self, gid: int, writeset: Writeset, keys: "array[int]", now: float) -> None:
        """Queue a committed writeset of another member, or one of ours that nobody waits for.

        Args:
            gid: its position.
            writeset: what to apply.
            keys: its ``key_array``.
            now: the time.
        """
        items = decode_body(writeset.body)
        work = self._open
        if work is None or self._is_full(work) or _spoils(work, keys):
            self.close_batch()
            work = self._open = self._append(gid)
            work.ripe_s = now + self._collect_s
        work.link.gid = gid
        work.writesets.append((keys, items))
        work.gids.append(gid)
        if writeset.flags & FLAG_FINGERPRINT:
            work.compared[gid] = writeset.body
            work.guarded |= slots(keys)
        for _, _, records in items:
            work.rows += len(records)
        size = len(writeset.body)
        work.bytes += size
        self.queued_bytes += size

    def _is_full(self, work: Work) -> bool:
        large = work.rows > _BATCH_ROWS or work.bytes > _BATCH_BYTES
        return large or work.link.gid <= self._singly_to

    def add_alone(self, gid: int | None, task: Task, size: int = 0) -> None:
        """Queue an item with a task of its own; ``gid`` None: it writes no link."""
        self.close_batch()
        work = self._append(self._chain.tail_gid if gid is None else gid)
        work.link.closed = True
        work.link.pinned = gid is None
        work.task = task
        work.bytes = size
        self.queued_bytes += size

    def close_batch(self) -> None:
        """Something follows the batch that is collecting, if one is: it may be applied now."""
        if self._open is not None:
            self._open.link.closed = True
            self._open = None

    def note_schema_change(self) -> None:
        """A local transaction with DDL was added to the chain: later items see another schema."""
        self._fresh_catalog = True

    def _append(self, gid: int) -> Work:
        tail = self._chain.tail
        if self._unused:
            number = self._unused.pop()
        else:
            number = self._next_batch
            self._next_batch += 1
        link = BatchLink(number, gid, self._chain.tail_gid)
        self._chain.append(link)
        work = Work(link, tail if isinstance(tail, LocalLink) else None)
        work.fresh_catalog, self._fresh_catalog = self._fresh_catalog, False
        self._queue.append(work)
        return work

    # ---- working it off ----------------------------------------------------------------------

    def ready_in_s(self, now: float) -> float | None:
        """How long the next item collects yet, 0 if it may be applied, None if there is none."""
        if not self._queue:
            return None
        work = self._queue[0]
        return 0.0 if work.link.closed else max(0.0, work.ripe_s - now)

    def pop_ready(self, now: float) -> Work | None:
        """Remove and return the next item, None if there is none or it still collects."""
        if self.ready_in_s(now) != 0.0:
            return None
        work = self._queue.popleft()
        if work is self._open:
            self.close_batch()
        return work

    def next_closed(self) -> Work | None:
        """The next item, if it is a batch that nothing can be added to, for the schema of now."""
        if not self._queue:
            return None
        work = self._queue[0]
        fixed = work.link.closed and work.task is None and not work.fresh_catalog
        return work if fixed else None

    def finish_item(self, work: Work) -> bool:
        """An item is visible. Return whether its token is to be handed on, see ``pass_token``."""
        self.queued_bytes -= work.bytes
        work.link.pinned = False
        self._chain.settle_to(work.link.gid)
        if work.passed:
            return False
        if work.link.number >= self._next_token:
            self._skip_to = work.link.number + 1  # done without a token: there were too many
            self._skip()
            return False
        if not work.link.named:
            self._unused.append(work.link.number)
        return work.link.named

    # ---- tokens ------------------------------------------------------------------------------

    def first_tokens(self) -> tuple[int, int]:
        """The tokens to take at first, from the one number to the other; see ``hold_first``."""
        self._next_token = self._next_batch + TOKEN_WINDOW
        return self._next_batch, self._next_token - 1

    def hold_first(self) -> None:
        """The first tokens are held."""
        self.token_limit = self._next_token

    def may_pass(self, work: Work) -> bool:
        """Whether a transaction was told to wait for an item, whose token is held."""
        return work.link.named and work.link.number < self._next_token and not work.passed

    def pass_token(self, work: Work) -> tuple[int, int]:
        """Return whose token to release, and which to take in its place; see ``hold_next``."""
        work.passed = True
        self._next_token += 1
        return work.link.number, self._next_token - 1

    def hold_next(self) -> None:
        """The token that was to be taken is held."""
        self.token_limit += 1
        self._skip()

    def _skip(self) -> None:
        """Leave out the tokens of batches that are done, once none is being taken before them."""
        if self.token_limit == self._next_token < self._skip_to:
            self.token_limit = self._next_token = self._skip_to


def _spoils(work: Work, keys: "array[int]") -> bool:
    """Whether a writeset would change rows whose fingerprint an earlier one of the batch carries.

    These are compared when all of the batch is written. Whoever changes a row takes its key
    exclusively, and whoever truncates a table takes the key that all its writers share. Bases and
    numbers of keys are among these numbers, too: one that looks like a key costs a batch.
    """
    guarded = work.guarded
    return bool(guarded) and not guarded.isdisjoint([key & -4 for key in keys if key & 2])
