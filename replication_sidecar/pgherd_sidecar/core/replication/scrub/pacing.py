"""How fast a scrub goes: when the next part is due, how large it is, and the rest after it."""

from collections.abc import Iterable

from pgherd_sidecar.core.replication.scrub.saved import Difference, Position, Saved

_RECHECK_S = 300.0
_LEAST_REST_S = 0.02
_PART_S = 0.1
_ROWS_MIN = 50
ROWS_MAX = 5_000
"""Of a part; fewer where they take longer than a fraction of a second."""
_FULL = 100


def rest_s(work_s: float, share: float) -> float:
    """How long to rest after work of so many seconds, to work for ``share`` percent of the time."""
    return max(_LEAST_REST_S, work_s * (_FULL / share - 1))


def due_s(saved: Saved, interval_s: float, parts_left: int, least_s: float) -> float:
    """When the next part of the pass is due, so that they are spread over what is left of it.

    Args:
        saved: where it stands.
        interval_s: what a pass is to take.
        parts_left: how many parts are left, about.
        least_s: rest after the last part.
    """
    left_s = saved.began_s + interval_s - saved.last_s
    return saved.last_s + max(least_s, left_s / max(1, parts_left))


def recheck_due(saved: Saved, interval_s: float, now_s: float) -> Difference | None:
    """The difference that has not been looked at for longest, if it is time to."""
    oldest = min(saved.differences, key=lambda one: one.checked_s, default=None)
    pause_s = max(1.0, min(_RECHECK_S, interval_s / 10))
    return oldest if oldest is not None and now_s >= oldest.checked_s + pause_s else None


def parts_left(extent: Iterable[tuple[str, float, int]], position: Position, rows: int) -> int:
    """How many parts are left of a pass, the list of tables among them.

    Args:
        extent: tables from where the pass is on: name, rows, indexes, all about.
        position: where it is.
        rows: of a part.
    """
    count = 1
    for name, size, indexes in extent:
        if name != position.table or position.index is None:
            count += max(1, -int(-size // rows)) + indexes
    return count


def rows_next(rows: int, work_s: float) -> int:
    """How many rows the next part is to have, when one of so many took so long."""
    wanted = rows * _PART_S / max(work_s, _PART_S / 2)
    return max(_ROWS_MIN, min(ROWS_MAX, int(wanted)))


def first_behind(names: Iterable[str], last: str) -> str | None:
    """The first name behind another; None if there is none."""
    return min((name for name in names if name > last), default=None)
