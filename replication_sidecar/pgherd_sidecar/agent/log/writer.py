"""Writes the log to disk: on the event loop while the disk is fast, in a thread when it is not.

A flush of a good disk takes about 60 microseconds, handing it to a thread and back several times
as long, and the commit of a single client pays for it twice, here and at a peer. So a flush that
is expected to be short is done inline; when flushes become slow they move to the thread, where a
stalled disk does not silence this member. A write that cannot be short, a large one or the begin
of a segment whose file is not prepared, goes to the thread anyway.

Only inline flushes are measured, since in a thread the wait for the interpreter lock would count
as disk. So now and then a flush is tried inline again, the less often the longer it was in vain.

Called by ``LogHost`` on its event loop. One write or trim at a time.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import TypeVar

from pgherd_sidecar.core.consensus import Block, Persist
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageError

T = TypeVar("T")

INLINE_FLUSH_S = 2e-3
"""Flushes that take less on average are done on the event loop."""
STALL_S = 20e-3
"""A single flush longer than this sends the following ones to the thread."""
_INLINE_BYTES = 256 << 10
_WEIGHT = 1 / 16
"""Of the newest flush in the moving average."""
_TRY_AGAIN_MIN_S = 0.25
_TRY_AGAIN_MAX_S = 10.0


class FlushPace:
    """Decides from the duration of inline flushes whether the next one may be inline.

    Attributes:
        average_s: moving average of inline flushes, a stall until the next trial.
        slowest_s: the longest of all.
    """

    __slots__ = ("_again_s", "_patience_s", "average_s", "slowest_s")

    def __init__(self) -> None:
        self.average_s = 0.0
        self.slowest_s = 0.0
        self._again_s = 0.0
        self._patience_s = 0.0

    @property
    def fast(self) -> bool:
        """Flushes are short at present."""
        return self.average_s < INLINE_FLUSH_S

    def inline(self, now: float) -> bool:
        """Whether the next flush is to be done inline: expected to be short, or as a trial."""
        return self.fast or now >= self._again_s

    def note_flush(self, duration_s: float, now: float) -> None:
        """Account for an inline flush that has just ended."""
        self.slowest_s = max(self.slowest_s, duration_s)
        if duration_s >= STALL_S or not self.fast:
            self.average_s = duration_s
        else:
            self.average_s += _WEIGHT * (duration_s - self.average_s)
        if self.fast:
            self._patience_s = 0.0
        else:
            self._patience_s = min(max(2 * self._patience_s, _TRY_AGAIN_MIN_S), _TRY_AGAIN_MAX_S)
            self._again_s = now + self._patience_s


class LogWriter:
    """The one writer of a ``SegmentLog``.

    Args:
        log: the log.
        persisted: called on the loop with the ticket of what a thread has written.
        trimmed: called on the loop with the last position that a trim removed.
        failed: called on the loop once the log can't go on.
    """

    def __init__(
        self,
        log: SegmentLog,
        *,
        persisted: Callable[[int], None],
        trimmed: Callable[[int], None],
        failed: Callable[[StorageError], None],
    ) -> None:
        self.pace = FlushPace()
        self.writes = 0
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._persisted = persisted
        self._trimmed = trimmed
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "log-writer")
        self._helper = ThreadPoolExecutor(1, "log-spare")
        self._queued = 0
        self._preparing = False
        self._closed = False
        self._prepare_spare()

    def write(self, persist: Persist) -> bool:
        """Make ``persist`` durable, at once (True) or later: ``persisted`` is called then.

        Raises:
            StorageError: the log can't go on.
        """
        self._prepare_spare()
        self.writes += 1
        if self._inline(persist):
            self.pace.note_flush(self._timed_persist(persist), self._loop.time())
            return True
        self._queued += 1
        self._submit(
            self._thread,
            partial(self._log.persist, persist),
            partial(self._written, persist.ticket),
        )
        return False

    def trim(self, position: int, keep_bytes: int) -> None:
        """Remove old segments, see ``SegmentLog.trim``; ``trimmed`` is called then."""
        self._queued += 1
        self._submit(self._thread, partial(self._log.trim, position, keep_bytes), self._removed)

    def mend(self, blocks: tuple[Block, ...], then: Callable[[], None]) -> None:
        """Write damaged blocks again, see ``SegmentLog.mend``; ``then`` is called on the loop."""
        self._queued += 1
        self._submit(self._thread, partial(self._log.mend, blocks), partial(self._mended, then))

    async def close(self) -> None:
        """Wait for what is under way; nothing is called back any more."""
        self._closed = True
        for executor in (self._thread, self._helper):
            await self._loop.run_in_executor(None, executor.shutdown)

    def _inline(self, persist: Persist) -> bool:
        """Tell whether this will be short, and nothing that came before is still in the thread."""
        return (
            self._queued == 0
            and self.pace.inline(self._loop.time())
            and self._log.spare_ready
            and persist.truncate_after is None
            and sum(len(block.data) for block in persist.blocks) <= _INLINE_BYTES
        )

    def _timed_persist(self, persist: Persist) -> float:
        start_s = perf_counter()
        self._log.persist(persist)
        return perf_counter() - start_s

    def _written(self, ticket: int, _: None) -> None:
        self._queued -= 1
        self._persisted(ticket)

    def _removed(self, position: int) -> None:
        self._queued -= 1
        self._trimmed(position)

    def _mended(self, then: Callable[[], None], _: None) -> None:
        self._queued -= 1
        then()

    def _prepare_spare(self) -> None:
        if not (self._log.spare_ready or self._preparing):
            self._preparing = True
            self._submit(self._helper, self._log.prepare_spare, self._prepared)

    def _prepared(self, _: None) -> None:
        self._preparing = False

    def _submit(
        self, executor: ThreadPoolExecutor, job: Callable[[], T], then: Callable[[T], None]
    ) -> None:
        """Do ``job`` in a thread, then call ``then`` with its result on the loop."""
        future = executor.submit(job)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._finish, done, then)
        )

    def _finish(self, done: Future[T], then: Callable[[T], None]) -> None:
        if self._closed:
            return
        error = done.exception()
        if isinstance(error, StorageError):
            self._failed(error)
        else:
            then(done.result())
