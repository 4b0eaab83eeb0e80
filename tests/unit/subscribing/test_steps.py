"""Changes of the log as changes of a subscriber's tables; what DDL means for them."""

import json
from typing import Any

import pytest
from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.state.steps import (
    AlteredError,
    extended,
    step_of,
    suspicion,
)
from pgherd_sidecar.tables.folding import Emptied, RowChange
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from pgherd_sidecar.tables.values import UNCHANGED


def column(name: str, *, oid: int = 23, generated: bool = False) -> SourceColumn:
    return SourceColumn(name, "integer", oid, -1, generated, as_text=False)


def table(name: str = "s.t", *columns: SourceColumn, key: tuple[int, ...] = (0,)) -> SourceTable:
    found = columns or (column("id"), column("twice", generated=True), column("v"))
    schema, _, relation = name.partition(".")
    identity: Any = "key" if key else "full"
    return SourceTable(1, name, schema, relation, 0, found, identity, key)


def change(op: str, key: Any = None, values: Any = None) -> LoggedChange:
    return LoggedChange(7, 0, 1, 9, "s.t", op, key, values)


@pytest.mark.parametrize(
    ("given", "step"),
    [
        (change("truncate"), Emptied(("s.t",))),
        (
            change("insert", {"id": "1"}, {"id": "1", "v": None}),
            RowChange("s.t", None, ("1", None)),
        ),
        (change("update", {"id": "1"}, {"v": "2"}), RowChange("s.t", ("1",), (UNCHANGED, "2"))),
        (change("delete", {"id": "1"}), RowChange("s.t", ("1",), None)),
    ],
)
def test_a_change_by_name_becomes_one_by_position(given: LoggedChange, step: object) -> None:
    assert step_of(given, table()) == step


def test_a_row_without_a_key_is_told_by_all_that_is_stored() -> None:
    given = change("delete", {"id": "1", "v": None})
    assert step_of(given, table(key=())) == RowChange("s.t", ("1", None), None)


@pytest.mark.parametrize(
    "given",
    [
        change("insert", {"id": "1"}, {"id": "1", "v": "2", "w": "3"}),
        change("insert", {"id": "1"}, {"id": "1"}),
        change("update", {"id": "1"}, {"w": "3"}),
        change("delete", {"v": "1"}),
    ],
)
def test_other_columns_or_another_key_stop_before_their_transaction(given: LoggedChange) -> None:
    with pytest.raises(AlteredError, match=r"s\.t") as caught:
        step_of(given, table())
    assert caught.value.gid == 7


def act(name: str, *rels: str) -> str:
    return json.dumps({"act": name, "object": "s.t", "value": None, "rels": rels})


def command(text: str, *rels: str, **more: object) -> str:
    return json.dumps({"sql": text, "rels": rels} | more)


@pytest.mark.parametrize(
    ("given", "sure"),
    [
        (command("ALTER TABLE s.t ADD w int", "s.t"), True),
        (command("ALTER TABLE s.t RENAME TO z", "s.z", gone=["s.t"]), True),
        (command("DROP OWNED BY somebody", everything=True, gone=["s.t"]), True),
        (command("DROP TABLE s.parent CASCADE", gone=["s.parent", "s.t"]), True),
        (command("ALTER INDEX s.x RENAME TO z", gone=["s.t"]), True),
        (command("ALTER INDEX s.t_key RENAME TO z", gone=[]), None),
        (command("DROP TABLE t.other", gone=["t.other"]), None),
        (command("DROP SCHEMA t CASCADE", gone=[], everything=True), False),
        (command("DROP FUNCTION s.f(int) CASCADE", "s.t"), True),
        (command("drop view s.v\ncascade;", "s.t"), True),
        (command("DROP FUNCTION s.f(int) CASCADE", "s.other"), None),
        (command("DROP FUNCTION s.f(int)", "s.t"), None),
        (command("CREATE TABLE s.u (t int REFERENCES s.t ON DELETE CASCADE)", "s.t"), None),
        (act("set_local", "s.t"), True),
        (act("set_replicated", "s.t"), True),
        (act("set_local", "s.other"), None),
        (act("setval", "s.t"), None),
        (command("anything", everything=True), False),
        (command("CREATE TABLE s.other (id int)", "s.other"), None),
        (command("CREATE INDEX ON s.t (v)", "s.t"), None),
        (command("ALTER TABLE s.other ADD w int", "s.other"), None),
        (command("ALTER TABLE s.t OWNER TO x", "s.t", leaves_tables=True), None),
        (command("ALTER TYPE s.mood ADD VALUE 'x'"), None),
        (json.dumps({"act": "setval"}), None),
    ],
)
def test_what_a_command_may_have_altered(given: str, sure: bool | None) -> None:
    found = suspicion(given, {"s.t": table()})
    assert (None if found is None else found[1]) == sure


def test_a_type_of_users_that_is_altered_concerns_tables_that_have_one() -> None:
    told = suspicion(
        command("ALTER TYPE s.mood RENAME VALUE 'a' TO 'b'"),
        {"s.t": table("s.t", column("id", oid=20000))},
    )
    assert told is not None and told[1]


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ("ALTER TABLE s.t ADD w int", True),
        ('alter table only "s"."t" add column "W x" numeric(10, 2);', True),
        ("ALTER TABLE s.t ADD w int[]", True),
        ("ALTER TABLE s.t ADD w int DEFAULT 1", False),
        ("ALTER TABLE s.t ADD w int NOT NULL", False),
        ("ALTER TABLE s.t ADD w bigserial", False),
        ("ALTER TABLE s.t ADD w int, ADD x int", False),
        ("ALTER TABLE s.t ADD w int, DROP v", False),
        ("ALTER TABLE s.t ADD UNIQUE (v)", False),
        ("ALTER TABLE s.t ADD CONSTRAINT c CHECK (v > 0)", False),
        ("ALTER TABLE s.t ADD w text COLLATE x", False),
        ("ALTER TABLE IF EXISTS s.t ADD w int", False),
        ("ALTER TABLE s.t ADD IF NOT EXISTS w int", False),
        ("ALTER TABLE s.t DROP v", False),
        ("ALTER TABLE s.t ADD w int -- DEFAULT", False),
    ],
)
def test_only_a_column_that_is_null_everywhere_is_added_by_itself(text: str, adds: bool) -> None:
    assert (extended(command(text, "s.t"), {"s.t": table()}) == "s.t") == adds
    assert extended(command(text, "s.t", "s.u"), {"s.t": table()}) is None
