"""The evaluation's plots: response times, aborts and growth as curves. Needs matplotlib."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.load import QUERIES, UPDATES
from benchmarks.evaluation.plan import nodes_of
from benchmarks.evaluation.record import Measurement, Record, systems_of
from benchmarks.evaluation.tables import PLOTS, label
from benchmarks.plot import choose_svg, save

COLOURS = {"plain": "#777777", "herd": ("#a8c7e0", "#6c9fc9", "#336791", "#10253a"),
           "galera": "#c0765a"}  # fmt: skip
HERDS = (1, 3, 5, 10)

Value = Callable[[Measurement], float | None]


def draw(record: Record, output: Path) -> list[Path]:
    """Draw what was measured into a directory; return the files, the same for the same figures."""
    choose_svg()
    figures = {one.figure for one in record.measurements}
    panels: dict[str, list[Panel]] = {
        "tpcw": [
            Panel("tpcw", "", "queries", "interactions/s", "ms", _time(QUERIES)),
            Panel("tpcw", "", "updates", "interactions/s", "ms", _time(UPDATES)),
        ],
        "updates": [
            Panel("updates", "5 clients", "5 clients", "transactions/s", "ms", _time(UPDATES)),
            Panel("updates", "20 clients", "20 clients", "transactions/s", "ms", _time(UPDATES)),
            Panel("updates", "20 clients", "20 clients", "transactions/s", "% aborted", _aborts),
        ],
        "growth": [
            Panel("conflicts", "", "hot set", "tuples", "% aborted", _aborts, log_x=True),
            Panel(
                "nodes", "update", "nodes: updates", "nodes", "transactions/s", _tps, by_kind=True
            ),
            Panel("nodes", "read", "nodes: reads", "nodes", "transactions/s", _tps, by_kind=True),
            Panel("rows", "", "rows: updates", "rows", "transactions/s", _tps, log_x=True),
            Panel("clients", "", "clients: updates", "clients", "transactions/s", _tps, log_x=True),
            Panel("bytes", "", "bytes", "bytes", "ms", _time(UPDATES), log_x=True),
        ],
    }
    written = []
    for name, all_panels in panels.items():
        own = [panel for panel in all_panels if panel.figure in figures]
        if own:
            written.append(_draw_one(record, own, output / PLOTS[name][0]))
    return written


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of a picture: a value over a figure's places, a line for each system."""

    figure: str
    series: str
    title: str
    x: str
    y: str
    value: Value
    log_x: bool = False
    by_kind: bool = False
    """Herds of all sizes are one line: their size is the place."""

    def lines(self, record: Record) -> dict[str, list[tuple[float, float]]]:
        """Return the points of each line, by system."""
        places = record.of(self.figure, self.series)
        found: dict[str, list[tuple[float, float]]] = {}
        for name in systems_of(places.values()):
            key = "herd" if self.by_kind and name.startswith("herd") else name
            found.setdefault(key, []).extend(
                (x, value)
                for (system, x), one in sorted(places.items(), key=lambda item: item[0][1])
                if system == name and (value := self.value(one)) is not None
            )
        return found

    def draw(self, record: Record, axes: Any) -> None:
        """Draw into matplotlib's axes."""
        for name, points in self.lines(record).items():
            axes.plot(
                [place for place, _ in points], [value for _, value in points], marker="o",
                label="replicas" if name == "herd" else label(name), color=colour(name),
            )  # fmt: skip
        axes.set_title(self.title)
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        if self.log_x:
            axes.set_xscale("log")
        if self.y == "ms":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)


def colour(system: str) -> str:
    """Return the colour of a system's lines: the more replicas, the darker."""
    if system.startswith("galera"):
        return str(COLOURS["galera"])
    if system.startswith("herd"):
        nodes = nodes_of(system)
        nearest = min(range(len(HERDS)), key=lambda index: abs(HERDS[index] - nodes))
        return COLOURS["herd"][nearest]
    return str(COLOURS["plain"])


def _draw_one(record: Record, panels: list[Panel], path: Path) -> Path:
    from matplotlib import pyplot  # noqa: PLC0415 (only after the choice of the back end)

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.2 * rows + 0.5), squeeze=False, layout="constrained"
    )
    for panel, place in zip(panels, axes.flat, strict=False):
        panel.draw(record, place)
    for place in list(axes.flat)[len(panels) :]:
        place.set_visible(False)
    labelled: dict[str, Any] = {}
    for place in axes.flat:
        for handle, text in zip(*place.get_legend_handles_labels(), strict=True):
            labelled.setdefault(text, handle)
    figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=6)
    save(figure, path)
    pyplot.close(figure)
    return path


def _time(kind: str) -> Value:
    return lambda one: one.mean_ms.get(kind)


def _tps(one: Measurement) -> float | None:
    return one.tps


def _aborts(one: Measurement) -> float | None:
    return 100 * one.abort_rate
