"""What a consistency job works on: the members at the marker, and which tables can be compared."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgherd_spark.reading.catalog import Description, Table
from pgherd_spark.reading.checksums import Part, Sum, parts_of
from pgherd_spark.reading.cluster import Cluster
from pgherd_spark.reading.pace import FULL
from pgherd_spark.reading.sources import Source

_BUCKET_BYTES = 64 << 10
_BUCKETS_MAX = 4096

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What the user asked for.

    Attributes:
        part_bytes: of a task.
        max_rows: to name for a table.
        share: percent of one core of each member that may be taken, see ``pace``.
    """

    part_bytes: int = 256 << 20
    max_rows: int = 100
    lease_s: float = 60.0
    timeout_s: float = 120.0
    share: int = FULL


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison under way.

    Attributes:
        cluster: does the work.
        sources: the members' snapshots.
        found: what they hold, by member.
        tables: those that all members have with the same columns and the same key, by name.
        buckets: into how many the keys of each table are divided: the same on all members.
        leaves: sums by member, by table and leaf, once they are known.
    """

    cluster: Cluster
    sources: Sequence[Source]
    found: Mapping[str, Description]
    options: CheckOptions
    say: Say
    tables: Mapping[str, Table] = field(init=False)
    buckets: Mapping[str, int] = field(init=False)
    leaves: dict[tuple[str, str], dict[str, Sum]] = field(
        init=False, default_factory=lambda: defaultdict(dict)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", _comparable(self.found))
        object.__setattr__(self, "buckets", _buckets(self.found))

    @property
    def members(self) -> list[str]:
        """Their names."""
        return [source.member for source in self.sources]

    def parts(self, names: Iterable[str]) -> list[Part]:
        """All parts of these tables on all members, those of the largest files first."""
        wanted = set(names)
        parts = [
            (relation.blocks, part)
            for source in self.sources
            for relation in self.found[source.member].relations
            if relation.table in wanted
            for part in parts_of(
                source,
                self.tables[relation.table],
                relation,
                self.options.part_bytes,
                self.options.share,
            )
        ]
        return [part for _, part in sorted(parts, key=lambda item: -item[0])]


def _comparable(found: Mapping[str, Description]) -> dict[str, Table]:
    first, *others = ({table.name: table for table in one.tables} for one in found.values())
    return {
        name: table
        for name, table in first.items()
        if all(other.get(name) == table for other in others)
    }


def _buckets(found: Mapping[str, Description]) -> dict[str, int]:
    """None of them large, and not too many for a table."""
    sizes: dict[str, int] = defaultdict(int)
    for description in found.values():
        own: dict[str, int] = defaultdict(int)
        for relation in description.relations:
            own[relation.table] += relation.blocks * relation.block_bytes
        for table in description.tables:
            sizes[table.name] = max(sizes[table.name], own[table.name])
    return {
        name: min(_BUCKETS_MAX, 1 << (size // _BUCKET_BYTES).bit_length())
        for name, size in sizes.items()
    }
