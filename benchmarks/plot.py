"""The comparison as a picture: one panel a workload, one bar a system. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.records import Cell, Record, over_rounds
from benchmarks.report import LABELS

COLOURS = {
    "pgherd": "#336791",
    "pgherdsql": "#5b8db8",
    "galera3": "#c0765a",
    "pgsync": "#7ba3c4",
    "plain": "#b5b5b5",
    "plain3": "#d0d0d0",
}


def draw(record: Record, path: Path) -> None:
    """Draw a record as an SVG that is the same for the same figures."""
    choose_svg()
    from matplotlib import pyplot  # noqa: PLC0415 (only after the choice of the back end)

    cells = over_rounds(record.cells)
    workloads = list(dict.fromkeys(workload for _, workload, _ in cells))
    clients = sorted({count for _, _, count in cells})
    systems = [name for name in LABELS if any(key[0] == name for key in cells)]
    figure, panels = pyplot.subplots(
        1, len(workloads), figsize=(4 * len(workloads), 3.4), squeeze=False, layout="constrained"
    )
    for panel, workload in zip(panels[0], workloads, strict=True):
        width = 0.8 / len(systems)
        for index, name in enumerate(systems):
            heights = heights_of(cells, name, workload, clients)
            places = [
                place + (index - (len(systems) - 1) / 2) * width for place in range(len(clients))
            ]
            panel.bar(places, heights, width, label=LABELS[name], color=COLOURS[name])
        panel.set_title(workload.removeprefix("oltp_"))
        panel.set_xticks(range(len(clients)), [str(count) for count in clients])
        panel.set_xlabel("clients")
    panels[0][0].set_ylabel("transactions a second")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    save(figure, path)
    pyplot.close(figure)


def choose_svg() -> None:
    """Have matplotlib draw SVGs that are the same for the same figures, and whose texts are text.

    The room for a text is that of the first font; the second is about as wide, the others less.
    """
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "pgherd"
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Helvetica", "Arial"]


def save(figure: Figure, path: Path) -> None:
    """Write a picture, of which powers of ten have a font also where the first one is not there."""
    figure.savefig(path, metadata={"Date": None})
    alone = "font-family: 'DejaVu Sans'"
    path.write_text(path.read_text().replace(f'{alone}"', f'{alone}, sans-serif"'))


def heights_of(
    cells: dict[tuple[str, str, int], Cell], system: str, workload: str, clients: Sequence[int]
) -> list[float]:
    """Return a system's throughput for each number of clients; 0 where it was not measured."""
    found = (cells.get((system, workload, count)) for count in clients)
    return [cell.tps if cell is not None else 0.0 for cell in found]
