"""Commits that clients were told of, by node, and who waits for more of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from patience import WaitRanOutError, in_time


class Acknowledged:
    """Counts acknowledged commits on each node. Lives in one event loop."""

    def __init__(self) -> None:
        self._by_node: Counter[str] = Counter()
        self._progress = asyncio.Event()

    def note(self, node: str) -> None:
        """One more."""
        self._by_node[node] += 1
        self._progress.set()

    async def more(self, commits: int, *, on: Iterable[str] = ()) -> None:
        """Wait until so many have been acknowledged from now on, on each of these nodes.

        Args:
            commits: how many.
            on: the nodes; by default all of them together.

        Raises:
            WaitRanOutError: that does not happen; says what has.
        """
        try:
            async with in_time():
                for node in on or (None,):
                    goal = self._count(node) + commits
                    while self._count(node) < goal:
                        self._progress.clear()
                        await self._progress.wait()
        except WaitRanOutError as error:
            where, so_far = node or "any node", dict(self._by_node)
            text = f"no {commits} commits on {where}: {error}; so far {so_far}"
            raise WaitRanOutError(text) from None

    def _count(self, node: str | None) -> int:
        return self._by_node.total() if node is None else self._by_node[node]
