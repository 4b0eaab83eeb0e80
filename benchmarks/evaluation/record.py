"""The record of an evaluation: one measurement a point, in a file that is written after each."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

SATURATED = 0.9
"""A point that commits and aborts less than this part of what was submitted is saturated."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One point on one system."""

    figure: str
    system: str
    series: str
    x: float
    clients: int
    offered_tps: float | None
    """The submitted load; None: as much as the clients could."""
    tps: float
    """Committed."""
    aborts: int
    committed: int
    mean_ms: dict[str, float]
    """By class of transaction: ``queries``, ``updates``."""
    p95_ms: dict[str, float]
    cpu_us: dict[str, float]
    """Microseconds of processors for each committed transaction, by kind of process."""
    link_bytes: float | None = None
    """Between all members, for each committed transaction."""
    link_segments: float | None = None
    lost: int = 0
    """Clients that an error ended which is no conflict."""
    last_error: str = ""

    @property
    def abort_rate(self) -> float:
        """Aborted transactions as a part of all that ended."""
        ended = self.aborts + self.committed
        return self.aborts / ended if ended else 0.0

    @property
    def cpu_all_us(self) -> float:
        """Microseconds of processors for each committed transaction."""
        return sum(self.cpu_us.values())

    @property
    def saturated(self) -> bool:
        """Whether less ended than was submitted: the response time grows with the run.

        Loads are submitted by chance, so a window with few transactions may have less by chance.
        """
        if self.offered_tps is None or not self.tps:
            return self.offered_tps is not None
        submitted = self.offered_tps * self.committed / self.tps
        ended = self.committed + self.aborts
        return ended < SATURATED * submitted - 2 * math.sqrt(submitted)


@dataclass(frozen=True, slots=True)
class Idle:
    """The use of a system by itself, each second."""

    cores: float = 0.0
    bytes_per_s: float = 0.0
    """Between all members."""
    segments_per_s: float = 0.0


@dataclass(slots=True)
class Record:
    """A whole run."""

    machine: dict[str, str]
    options: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """By system: why it was not measured to the end."""
    skipped: list[str] = field(default_factory=list)
    proposers: dict[str, str] = field(default_factory=dict)
    """By herd: the member that ordered the log when it was started; the first client is on n1."""
    idle: dict[str, Idle] = field(default_factory=dict)
    """By system: what it uses while nobody asks for anything."""
    measurements: list[Measurement] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write the record as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def of(self, figure: str, series: str = "") -> dict[tuple[str, float], Measurement]:
        """Return a figure's measurements by system and place; of one series, if it has some."""
        return {
            (one.system, one.x): one
            for one in self.measurements
            if one.figure == figure and one.series in (series or one.series, "")
        }


def load(path: Path) -> Record:
    """Return the record in a file that ``save`` wrote."""
    raw = json.loads(path.read_text())
    measurements = [Measurement(**one) for one in raw.pop("measurements")]
    idle = {name: Idle(**one) for name, one in raw.pop("idle").items()}
    return Record(**raw, idle=idle, measurements=measurements)


def systems_of(measurements: Iterable[Measurement]) -> list[str]:
    """Return the systems that were measured, in the order in which they were."""
    return list(dict.fromkeys(one.system for one in measurements))


def kinds(cpu_us: Mapping[str, float]) -> str:
    """Return a cost by kind of process as text, the largest first."""
    ranked = sorted(cpu_us.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {us:,.0f}" for kind, us in ranked if us >= 0.5)
