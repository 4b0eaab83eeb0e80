"""The history of a row is read from a log that is trimmed meanwhile."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import LoggedChange, PositionLostError
from pgherd_sidecar.client.stream.history import History, RowName

VISIBLE = 9


class Log:
    """Begins later each time that it is asked; loses what comes next after some positions."""

    def __init__(self, begins: list[int], lost: dict[int, int]) -> None:
        self._begins = begins
        self._lost = lost

    async def begins(self) -> int:
        return self._begins.pop(0) if len(self._begins) > 1 else self._begins[0]

    async def visible(self) -> int:
        return VISIBLE

    async def between(self, after: int, through: int) -> AsyncIterator[list[LoggedChange]]:
        for gid in range(after + 1, through + 1):
            if self._lost.get(after + 1) == gid:
                raise PositionLostError("it is not there any more")
            yield [LoggedChange(gid, 0, 1, 1, "public.t", "update", {"id": "1"}, {})]


async def read(log: Any, key: str = "1") -> tuple[int, list[int]]:
    history = History(cast("ChangeLog", log), RowName.of("t", [key]))
    found = [change.gid async for change in history.changes()]
    return history.begins, found


async def test_it_begins_anew_until_something_is_told() -> None:
    assert await read(Log([3, 5], {3: 3})) == (5, [5, 6, 7, 8, 9])
    assert await read(Log([3, 5, 8], {3: 7, 5: 9}), key="2") == (8, [])


async def test_a_hole_behind_what_was_told_is_an_error() -> None:
    with pytest.raises(PositionLostError):
        await read(Log([3, 5], {3: 4}))


async def test_a_log_that_begins_where_it_did_and_lacks_that_is_an_error() -> None:
    with pytest.raises(PositionLostError):
        await read(Log([3], {3: 3}))
