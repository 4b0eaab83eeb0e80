"""The part of a scrub that is worth keeping: how far it is, and what has been found."""

from typing import Any

import msgspec

from pgherd_sidecar.core.replication.scrub.messages import Key, Kind, Subject


class Position(msgspec.Struct, frozen=True):
    """How far a pass is.

    Attributes:
        table: the one that it is at, "" before the first.
        after: rows up to here are done.
        index: all rows are done, and indexes up to this one; None while rows are left.
    """

    table: str = ""
    after: Key | None = None
    index: str | None = None

    def behind(self, scanned: Subject) -> "Position | None":
        """The position when this is done, too; None behind the last part of a pass."""
        match scanned.kind:
            case Kind.NAMES:
                return None
            case Kind.INDEX:
                return Position(scanned.table, None, scanned.index)
            case _ if scanned.until is None:
                return Position(scanned.table, None, "")
            case _:
                return Position(scanned.table, scanned.until)


class Difference(msgspec.Struct):
    """A part that members have been found to differ in twice.

    Attributes:
        gid: the position of the last request that showed it.
        first_gid: that of the first one.
        members: names of those whom a majority contradicts; of all where there is no majority.
        majority: there is one.
        keys: as JSON, some of them, each with the members that it concerns.
        more: how many other keys there are at least.
        text: what is wrong with an index.
        seen_s, checked_s: when it was found, and last asked for, on the clock of who asked.
    """

    subject: Subject
    gid: int
    first_gid: int
    members: tuple[str, ...]
    majority: bool
    keys: dict[str, tuple[str, ...]]
    more: int
    text: str
    seen_s: float
    checked_s: float


class Saved(msgspec.Struct):
    """All that is worth keeping: see `Ledger`."""

    number: int = 1
    began_s: float = 0.0
    last_s: float = 0.0
    position: Position = Position()
    passes: int = 0
    finished_s: float = 0.0
    rows: int = 0
    skipped: int = 0
    differences: list[Difference] = []


def summary(saved: Saved) -> list[dict[str, Any]]:
    """The differences as plain values."""
    found: list[dict[str, Any]] = []
    for one in saved.differences:
        subject = one.subject
        found.append(
            {
                "kind": {Kind.NAMES: "tables", Kind.INDEX: "index"}.get(subject.kind, "rows"),
                "table": subject.table,
                "index": subject.index,
                "keys": {key: list(members) for key, members in one.keys.items()},
                "more_keys": one.more,
                "members": list(one.members),
                "majority": one.majority,
                "gid": one.gid,
                "first_gid": one.first_gid,
                "text": one.text,
            }
        )
    return found
