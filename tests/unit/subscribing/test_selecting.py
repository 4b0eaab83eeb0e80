"""Row filters and column lists: what of the log's changes needs no server to be decided."""

from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.client.stream.changes import LoggedChange, Values
from pgherd_sidecar.subscribing.selecting import publication
from pgherd_sidecar.subscribing.selecting.filtering import TablePart, selected
from pgherd_sidecar.subscribing.sources import MemberSource
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription, TableSelection
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.steps import AlteredError
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from pgherd_sidecar.tables.sessions import Session
from psycopg import sql

NOBODY = cast("Session", None)
LIST = TableSelection("s.t", columns=("id", "v"))
FILTER = TableSelection("s.t", condition="(region = 1)", reads=("region",))
BY_KEY = TableSelection("s.t", condition="(id = 1)", reads=("id",))


def place(selection: TableSelection) -> dict[str, ShownTable]:
    columns = tuple(
        SourceColumn(name, "int4", 23, -1, generated=False, as_text=False)
        for name in ("id", "region", "v")
        if selection.has(name)
    )
    table = SourceTable(1, "s.t", "s", "t", 0, columns, "key", (0,))
    return {"s.t": ShownTable(table, 5, 1, of=selection, read_types=("integer",))}


def part(selection: TableSelection) -> dict[str, TablePart]:
    return {"s.t": TablePart(selection, ("integer",))}


def change(op: str, gid: int = 7, **values: str) -> LoggedChange:
    key: Values | None = None if op == "truncate" else {"id": "1"}
    return LoggedChange(gid, 0, 1, 1, "s.t", op, key, {**values} or None)


class Server:
    """Remembers what it is asked, and lets the rows pass that it is told to."""

    def __init__(self, *numbers: int) -> None:
        self.asked: list[Any] = []
        self.said = ""
        self._numbers = numbers

    async def execute(self, command: sql.Composed, arrays: list[str]) -> "Server":
        self.said = command.as_string(None)
        self.asked.append(arrays)
        return self

    async def fetchall(self) -> list[dict[str, int]]:
        return [{"number": number} for number in self._numbers]


async def test_a_list_leaves_its_columns_and_no_update_of_others() -> None:
    given = [
        change("insert", id="1", region="2", v="3"), change("update", region="3"),
        change("update", region="3", v="4"), change("delete"), change("truncate"),
    ]  # fmt: skip
    found = await selected(NOBODY, given, place(LIST), part(LIST))
    assert [(one.op, one.values) for one in found] == [
        ("insert", {"id": "1", "v": "3"}), ("update", {"v": "4"}), ("delete", None),
        ("truncate", None),
    ]  # fmt: skip


async def test_rows_are_chosen_as_they_are_after_an_insert() -> None:
    server = Server(1)
    given = [
        change("insert", id="1", region="2", v="3"), change("insert", id="1", region="1", v="4"),
        change("delete"), change("update", v="9"),
    ]  # fmt: skip
    found = await selected(cast("Session", server), given, place(FILTER), part(FILTER))
    assert found == given[1:]
    assert server.asked == [['{"2","1"}']]


async def test_a_filter_of_the_key_chooses_all_changes() -> None:
    server = Server(0)
    given = [change("update", v="1"), change("delete"), change("truncate")]
    found = await selected(cast("Session", server), given, place(BY_KEY), part(BY_KEY))
    assert found == [given[0], given[2]]
    assert server.asked == [['{"1","1"}']]


async def test_what_a_copy_has_already_is_not_looked_at() -> None:
    given = [change("update", gid=5, region="2"), change("insert", gid=4, id="1")]
    assert await selected(NOBODY, given, place(FILTER), part(FILTER)) == given


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (change("update", region="2"), "no unique index"),
        (change("insert", id="1", v="2"), "column no more"),
    ],
)
async def test_what_a_change_does_not_tell_is_noticed(given: LoggedChange, error: str) -> None:
    with pytest.raises(AlteredError, match=error) as raised:
        await selected(NOBODY, [given], place(FILTER), part(FILTER))
    assert raised.value.gid == 7


async def test_no_word_of_the_subscriber_gets_into_a_statement() -> None:
    """A superuser of the member evaluates the filter; the subscriber's role is an ordinary one."""
    server = Server(0)
    given = [change("insert", id="1", region="1", v="3", secret="x")]
    forged = {
        "s.t": msgspec.structs.replace(
            place(FILTER)["s.t"], of=TableSelection("s.t", None, "evil()", ("v",))
        )
    }
    found = await selected(cast("Session", server), given, forged, part(FILTER))
    assert found == given and "region = 1" in server.said and "evil" not in server.said
    forged = {"s.t": msgspec.structs.replace(place(FILTER)["s.t"], read_types=("text || evil()",))}
    with pytest.raises(AlteredError, match="another type"):
        await selected(cast("Session", server), given, forged, part(FILTER))


class Log:
    """Has some changes."""

    def __init__(self, given: list[LoggedChange]) -> None:
        self._given = given

    async def between(self, *_: int) -> Any:
        yield self._given


async def test_a_subscriber_gets_no_table_that_it_names_itself() -> None:
    other = msgspec.structs.replace(change("insert", id="1"), table="s.secret")
    emptied = msgspec.structs.replace(change("truncate"), table="s.secret")
    given = [other, change("insert", id="1"), emptied]
    order = Subscription("a", "s", "", 1, 0, 0.0, None, None, ("s.t",))
    source = MemberSource(cast("Any", None), cast("Any", Log(given)), order)
    forged = place(LIST) | {"s.secret": place(LIST)["s.t"]}
    found = [one async for some in source.between(1, 9, forged) for one in some]
    assert found == given[1:]


def test_updates_of_rows_that_are_not_there_are_known_by_the_filter() -> None:
    assert place(FILTER)["s.t"].is_partial
    assert not place(BY_KEY)["s.t"].is_partial and not place(LIST)["s.t"].is_partial


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"tab": None, "named": "x"}, "no table that the herd replicates"),
        ({"columns": ["v"]}, "column id is in the key"),
        ({"columns": ["v"], "key": []}, "no primary key"),
        ({"reads": ["v"]}, r"UNIQUE INDEX ON s.t \(id, v\)"),
        ({"reads": ["id"], "generated": ["id"]}, "computed"),
    ],
)
def test_what_can_not_be_followed_exactly_is_refused(row: dict[str, Any], error: str) -> None:
    whole: dict[str, Any] = {
        "tab": "s.t", "named": "s.t", "columns": None, "key": ["id"], "reads": [],
        "generated": [], "whole": ["id"], "condition": None,
    }  # fmt: skip
    with pytest.raises(StoppedError, match=error):
        publication._selection(whole | row)
    assert publication._selection(whole | {"key": [], "reads": ["v"]}).reads == ("v",)


def test_a_selection_reads_as_a_publication_has_it() -> None:
    assert str(TableSelection("s.t", ("id", "v"), "(v > 1)", ("v",))) == (
        "s.t (id, v) WHERE (v > 1)"
    )
    assert TableSelection("s.t").is_whole and not FILTER.is_whole
