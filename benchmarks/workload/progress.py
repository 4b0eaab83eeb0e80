"""The demo's live figures: one line that updates on a terminal, plain lines elsewhere.

Called with each pgbench's progress; keeps only the newest figures of every node.
"""

import sys
from collections.abc import Sequence
from typing import TextIO

from benchmarks.workload.parse import Progress

PLAIN_EVERY_S = 5


class LiveFigures:
    """Newest figures of all nodes, printed when the last node has reported a second."""

    def __init__(self, names: Sequence[str], out: TextIO = sys.stdout) -> None:
        self._names = names
        self._newest: dict[int, Progress] = {}
        self._printed_s = 0
        self._out = out

    def update(self, node: int, progress: Progress) -> None:
        """Take the newest figures of one node and print when they complete a second."""
        self._newest[node] = progress
        second = min(round(newest.at_s) for newest in self._newest.values())
        if len(self._newest) < len(self._names) or second <= self._printed_s:
            return
        if self._out.isatty():
            self._print(f"\r\x1b[K{self._line(second)}")
        elif second % PLAIN_EVERY_S == 0:
            self._print(f"{self._line(second)}\n")
        self._printed_s = second

    def finish(self) -> None:
        """Leave the line that was being updated."""
        if self._out.isatty() and self._printed_s:
            self._print("\n")

    def _line(self, second: int) -> str:
        figures = [self._newest[node] for node in range(len(self._names))]
        nodes = "  ".join(
            f"{name} {figure.tps:.0f}" for name, figure in zip(self._names, figures, strict=True)
        )
        total = sum(figure.tps for figure in figures)
        # Weighted by transactions; a stalled second has none and pgbench says NaN.
        busy = [figure for figure in figures if figure.tps > 0]
        latency = sum(figure.latency_ms * figure.tps for figure in busy) / total if busy else 0
        retries = sum(figure.retries for figure in figures)
        failed = sum(figure.failed for figure in figures)
        return (
            f"  {second:3d} s  {nodes}  | {total:.0f} tps, {latency:.1f} ms, "
            f"{retries} retries, {failed} failed"
        )

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
