"""Commits that clients were told of, by node, and who waits for more of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable

_STUCK_S = 120  # far beyond what the slowest machine needs: not a measurement, but an end


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
            AssertionError: that does not happen; says what has.
        """
        try:
            async with asyncio.timeout(_STUCK_S):
                for node in on or (None,):
                    goal = self._count(node) + commits
                    while self._count(node) < goal:
                        self._progress.clear()
                        await self._progress.wait()
        except TimeoutError:
            where, so_far = node or "any node", dict(self._by_node)
            raise AssertionError(
                f"no {commits} commits on {where} in {_STUCK_S} s; so far {so_far}"
            ) from None

    def _count(self, node: str | None) -> int:
        return self._by_node.total() if node is None else self._by_node[node]
