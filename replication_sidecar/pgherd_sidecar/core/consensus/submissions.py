"""The proposer's queue of submissions, and how a block is made of them.

A block takes submissions in order of arrival until it is full, then sorts them by origin, so
that each member sees few and long runs of remote entries, which its applier can merge. The order
of one origin's submissions is kept.
"""

from collections import deque
from collections.abc import Collection
from operator import itemgetter

#: origin, data, count
_Submission = tuple[str, bytes, int]

_origin = itemgetter(0)


class Submissions:
    """Entries waiting for the next block, bounded in bytes."""

    __slots__ = ("_max_bytes", "_queue", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._queue: deque[_Submission] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def offer(self, origin: str, data: bytes, count: int) -> bool:
        """Queue a submission; False if the queue is full."""
        if self._queue and self.size_bytes + len(data) > self._max_bytes:
            return False
        self._queue.append((origin, data, count))
        self.size_bytes += len(data)
        return True

    def take_block(self, max_bytes: int) -> tuple[bytes, int]:
        """Return data and count of the next block: one submission at least."""
        queue = self._queue
        if len(queue) == 1:
            _, data, count = queue.popleft()
            self.size_bytes = 0
            return data, count
        taken = [queue.popleft()]
        size = len(taken[0][1])
        while queue and size + len(queue[0][1]) <= max_bytes:
            size += len(queue[0][1])
            taken.append(queue.popleft())
        self.size_bytes -= size
        taken.sort(key=_origin)
        return b"".join([data for _, data, _ in taken]), sum(count for _, _, count in taken)

    def keep(self, origins: Collection[str]) -> None:
        """Forget what others than these have submitted."""
        self._queue = deque(one for one in self._queue if one[0] in origins)
        self.size_bytes = sum(len(data) for _, data, _ in self._queue)

    def clear(self) -> None:
        """Forget everything; the origins will submit it again."""
        self._queue.clear()
        self.size_bytes = 0
