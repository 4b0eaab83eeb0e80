"""What a comparison leaves: one cell a measurement, and the file that holds them all.

Written by the comparison after every cell, so that an interrupted run keeps what it measured.
"""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload with one number of clients on one system, in one round or over all."""

    system: str
    workload: str
    clients: int
    tps: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    aborts_per_s: float
    cpu_us: dict[str, float]
    """CPU microseconds a transaction, by kind of process."""
    sidecar_rss_mb: float
    """The largest sidecar's resident memory."""
    fatal: tuple[str, ...] = ()
    """Errors that ended a sysbench process; the cell was measured again then."""
    incomplete: bool = False
    """The last attempt failed as well: figures of the clients that survived."""
    control_tps: float = 0.0
    """Of the plain server beside it: the slower of its two measurements, before and after."""


@dataclass(slots=True)
class Record:
    """A whole run."""

    machine: dict[str, str]
    options: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By system: why it could not be measured to the end."""
    disturbed: list[str] = field(default_factory=list)
    """A line for each system whose cells were thrown away, since the machine was not itself."""
    cells: list[Cell] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the record as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def over_rounds(cells: Sequence[Cell]) -> dict[tuple[str, str, int], Cell]:
    """Return one cell for each system, workload and number of clients: medians over the rounds."""
    grouped: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells:
        grouped.setdefault((cell.system, cell.workload, cell.clients), []).append(cell)
    return {key: _median(group) for key, group in grouped.items()}


def drop_disturbed(record: Record, largest_loss: float) -> list[str]:
    """Throw away the cells that were measured while the machine was slow.

    Args:
        record: It loses the cells, and notes it.
        largest_loss: By what part of its best the plain server may have been slower: 0 to 1.

    Returns:
        The systems that lost cells.
    """
    best = max((cell.control_tps for cell in record.cells), default=0.0)
    lost = {
        (cell.system, cell.control_tps)
        for cell in record.cells
        if cell.control_tps < (1 - largest_loss) * best
    }
    record.cells = [cell for cell in record.cells if (cell.system, cell.control_tps) not in lost]
    record.disturbed += [
        f"{system}: a plain server made {tps:.0f} transactions a second beside it, and {best:.0f} "
        "at its best; what was measured was thrown away."
        for system, tps in sorted(lost)
    ]
    return sorted({system for system, _ in lost})


def this_machine() -> dict[str, str]:
    """Return what a reader has to know of the machine that was measured."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpus": str(os.cpu_count()),
        "cpu": models[0] if models else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _median(group: Sequence[Cell]) -> Cell:
    kinds = {kind for cell in group for kind in cell.cpu_us}
    return Cell(
        system=group[0].system,
        workload=group[0].workload,
        clients=group[0].clients,
        tps=median(cell.tps for cell in group),
        p50_ms=median(cell.p50_ms for cell in group),
        p95_ms=median(cell.p95_ms for cell in group),
        p99_ms=median(cell.p99_ms for cell in group),
        aborts_per_s=median(cell.aborts_per_s for cell in group),
        cpu_us={kind: median(cell.cpu_us.get(kind, 0.0) for cell in group) for kind in kinds},
        sidecar_rss_mb=max(cell.sidecar_rss_mb for cell in group),
        fatal=tuple(error for cell in group for error in cell.fatal),
        incomplete=any(cell.incomplete for cell in group),
        control_tps=min(cell.control_tps for cell in group),
    )
