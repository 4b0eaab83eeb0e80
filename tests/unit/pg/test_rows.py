"""Which statements a batch becomes: as few as can be, and never out of order."""

import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from pgherd_sidecar.core.replication.merge import Op, Plan, Statement, Wave
from pgherd_sidecar.pg.rows import JOINT_MAX, RowStatements, TableShape, text_array


def shape(table: str, *, only: bool = False) -> TableShape:
    return TableShape(["id", "v", "w"], [0], frozenset([2]), "o.id = n.id", only, table)


async def knowing(*tables: str) -> RowStatements:
    async def describe(table: str) -> TableShape:
        return shape(table)

    rows = RowStatements(describe)
    await rows.learn_tables(tables)
    return rows


def update(table: str, count: int = 1, bitmap: str = "010") -> Statement:
    return Statement(Op.UPDATE, table, bitmap, [f"({i},x,)" for i in range(count)])


def insert(table: str, count: int = 1) -> Statement:
    return Statement(Op.INSERT, table, "", [f"({i},x,)" for i in range(count)])


def delete(table: str, op: Op = Op.DELETE) -> Statement:
    return Statement(op, table, "", ["(1,,)"])


def truncate(table: str) -> Statement:
    return Statement(Op.TRUNCATE, table, "", [])


def plan(*waves: Iterable[Statement]) -> Plan:
    return Plan([Wave(list(statements)) for statements in waves])


def queries(rows: RowStatements, work: Plan) -> list[str]:
    return [statement.query.decode() for statement in rows.prepared(work, 9, 8)]


async def test_changes_of_different_tables_and_the_link_are_one_statement() -> None:
    rows = await knowing("a", "b")
    (one,) = rows.prepared(plan([update("a", 2), insert("b", 3)]), 9, 8)
    numbers = [struct.pack("!q", n) for n in (5, 9, 8)]
    records = [text_array(["(0,x,)", "(1,x,)"]), text_array(["(0,x,)", "(1,x,)", "(2,x,)"])]
    assert list(one.parameters) == records + numbers
    assert list(one.formats) == [1] * 5
    text = one.query.decode()
    assert text.startswith('WITH "c1" AS (UPDATE a o SET v = n.v FROM unnest($1::text[]::a[]) n')
    assert "INSERT INTO b AS o (id, v) OVERRIDING SYSTEM VALUE SELECT n.id, n.v" in text
    assert "INSERT INTO pgherd.applied VALUES ($4::int8, $5::int8)" in text
    assert "count(*) <> $3::int8" in text


async def test_changes_of_one_table_keep_their_order_in_statements_of_their_own() -> None:
    rows = await knowing("a", "b")
    texts = queries(rows, plan([delete("a"), update("b"), insert("a")], [delete("a"), insert("b")]))
    assert [text.count(" AS (") for text in texts] == [2, 2, 2]
    assert ["DELETE FROM a" in text for text in texts] == [True, False, True]
    assert ["INSERT INTO a" in text for text in texts] == [False, True, False]
    assert ["UPDATE b" in text for text in texts] == [True, False, False]
    assert ["INSERT INTO b" in text for text in texts] == [False, True, False]
    assert ["pgherd.applied" in text for text in texts] == [False, False, True]


async def test_a_truncation_comes_before_all_that_follows_it() -> None:
    rows = await knowing("a", "b")
    texts = queries(rows, plan([insert("b")], [truncate("a"), truncate("b"), insert("a")]))
    assert texts[1] == "SELECT pgherd.truncate(ARRAY['a', 'b']::regclass[])"
    assert ["INSERT INTO b" in text for text in texts] == [True, False, False]
    assert ["INSERT INTO a" in text for text in texts] == [False, False, True]
    assert ["pgherd.applied" in text for text in texts] == [False, False, True]


async def test_after_a_truncation_alone_the_link_is_a_statement() -> None:
    rows = await knowing("a")
    texts = queries(rows, plan([truncate("a")]))
    assert len(texts) == 2
    assert "pgherd.applied VALUES ($1::int8, $2::int8)" in texts[1]


async def test_a_batch_without_effect_still_makes_its_link() -> None:
    rows = await knowing()
    (one,) = rows.prepared(plan(), 9, 8)
    assert list(one.parameters) == [struct.pack("!q", 9), struct.pack("!q", 8)]


async def test_what_may_be_gone_already_is_not_counted() -> None:
    rows = await knowing("a", "b")
    (one,) = rows.prepared(plan([delete("a", Op.ERASE), update("b")]), 9, 8)
    assert one.parameters[2] == struct.pack("!q", 1)
    (alone,) = rows.prepared(plan([delete("a", Op.ERASE)]), 9, 8)
    assert len(alone.parameters) == 3
    assert b"pgherd.expect" not in alone.query


async def test_equal_work_uses_the_same_statement_in_whatever_order_it_comes() -> None:
    rows = await knowing("a", "b")
    first, second = plan([update("a"), update("b")]), plan([update("b", 7), update("a", 2)])
    assert rows.prepared(first, 9, 8)[0].name == rows.prepared(second, 11, 9)[0].name
    other = plan([update("a", bitmap="110"), update("b")])
    assert rows.prepared(other, 9, 8)[0].name != rows.prepared(first, 9, 8)[0].name


async def test_the_number_of_joint_statements_is_bounded() -> None:
    tables = [f"t{i}" for i in range(JOINT_MAX + 1)]
    rows = await knowing("a", *tables)
    known = [rows.prepared(plan([update("a"), update(table)]), 9, 8) for table in tables]
    assert [len(statements) for statements in known] == [1] * JOINT_MAX + [2]
    again = rows.prepared(plan([update("a"), update("t0")]), 9, 8)
    assert [one.name for one in again] == [one.name for one in known[0]]


async def test_statements_that_were_not_used_for_long_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients may update one set of columns after the other, and there are very many."""
    monkeypatch.setattr("pgherd_sidecar.pg.rows.NAMES_MAX", 3)
    rows = await knowing("a", "b", "c", "d", "e")
    names = [rows.prepared(plan([update(table)]), 9, 8)[0].name for table in "abcade"]
    assert names[3] == names[0]
    assert len(set(names)) == 5
    again = [rows.prepared(plan([update(table)]), 9, 8)[0].name for table in "adeb"]
    assert again[:3] == names[3:], "the last ones that were used"
    assert again[3] not in names


async def test_after_a_change_of_schema_no_old_statement_is_used() -> None:
    rows = await knowing("a")
    (before,) = rows.prepared(plan([update("a")]), 9, 8)
    rows.forget_shapes()
    assert not rows.knows("a")
    await rows.learn_tables(["a"])
    (after,) = rows.prepared(plan([update("a")]), 9, 8)
    assert after.name != before.name


async def test_a_table_with_children_is_written_alone() -> None:
    async def describe(table: str) -> TableShape:
        return shape(table, only=True)

    rows = RowStatements(describe)
    await rows.learn_tables(["a"])
    (text,) = queries(rows, plan([update("a")]))
    assert "UPDATE ONLY a o" in text


async def test_an_ordinary_connection_gets_queries_with_plain_parameters() -> None:
    rows = await knowing("a", "b")
    work = plan([truncate("b"), update("a", 2), insert("b")])
    (_, none), (query, parameters) = rows.plain(work)
    assert none == []
    assert parameters == [["(0,x,)", "(1,x,)"], ["(0,x,)"], 3]
    assert b"pgherd.applied" not in query


async def bags() -> RowStatements:
    async def describe(table: str) -> TableShape:
        return TableShape(["v", "w"], [], frozenset(), "", False, table, "pgherd_gen.erase_7")

    rows = RowStatements(describe)
    await rows.learn_tables(["bag"])
    return rows


async def test_rows_without_identity_are_taken_away_by_their_images_and_counted() -> None:
    rows = await bags()
    work = plan([Statement(Op.DELETE, "bag", "", ["(1,)", "(1,)", "(2,)"])])
    (one,) = rows.prepared(work, 9, 8)
    text = one.query.decode()
    assert text.startswith(
        'WITH "c1" AS (SELECT FROM generate_series(1, pgherd_gen.erase_7($1::text[], false)))'
    )
    assert "count(*) <> $2::int8" in text
    assert one.parameters[:2] == [text_array(["(1,)", "(1,)", "(2,)"]), struct.pack("!q", 3)]


async def test_rows_without_identity_are_replaced_in_pairs() -> None:
    rows = await bags()
    work = plan([Statement(Op.REPLACE, "bag", "", ["(1,)", "(2,)", "(3,)", "(4,)"])])
    (one,) = rows.prepared(work, 9, 8)
    assert b"pgherd_gen.erase_7($1::text[], true)" in one.query
    assert one.parameters[1] == struct.pack("!q", 2)
    parameters = [parameters for _, parameters in rows.plain_single(work)]
    assert parameters == [[["(1,)", "(2,)"], 1], [["(3,)", "(4,)"], 1]]


async def test_a_row_moves_from_its_old_key_to_its_new_one() -> None:
    async def describe(table: str) -> TableShape:
        return TableShape(
            ["id", "v", "w"],
            [0],
            frozenset([2]),
            "o.id = n.id",
            False,
            table,
            fixed=frozenset([1]),
        )

    rows = RowStatements(describe)
    await rows.learn_tables(["a"])
    assert rows.settable_columns("a") == "100"
    work = plan([Statement(Op.MOVE, "a", "110", ["(1,,)", "(2,x,)", "(3,,)", "(4,y,)"])])
    (one,) = rows.prepared(work, 9, 8)
    text = one.query.decode()
    assert "UPDATE a o SET id = m.id, v = m.v FROM unnest(($1::text[]))" in text
    assert text.count("o.id = n.id") == 1
    assert one.parameters[1] == struct.pack("!q", 2)
    parameters = [parameters for _, parameters in rows.plain_single(work)]
    assert parameters == [[["(1,,)", "(2,x,)"], 1], [["(3,,)", "(4,y,)"], 1]]
    assert rows.primary_key(work.waves[0].statements[0]) == "id = 1"


async def test_rows_without_identity_are_deleted_one_by_one_and_have_no_key_for_people() -> None:
    rows = await bags()
    work = plan([Statement(Op.DELETE, "bag", "", ["(1,)", "(1,)"])])
    queries_ = rows.plain_single(work)
    assert [parameters for _, parameters in queries_] == [[["(1,)"], 1], [["(1,)"], 1]]
    assert not rows.primary_key(work.waves[0].statements[0])


async def test_the_key_for_people_is_read_without_the_rest_of_a_wide_row() -> None:
    async def describe(table: str) -> TableShape:
        return TableShape(["id", "k", "v"], [0, 1], frozenset(), "", False, table)

    rows = RowStatements(describe)
    await rows.learn_tables(["t"])
    text = '(7,"ä ""\U0001f40f","' + "a" * 1_000_000 + '\U0001f40f")'
    told = 'id = 7, k = ä "\U0001f40f'
    assert rows.primary_key(Statement(Op.INSERT, "t", "", [text])) == told
    wide = Statement(Op.INSERT, "t", "", [text.encode()])
    tracemalloc.start()
    try:
        assert rows.primary_key(wide) == told
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.5 * len(text)


async def test_no_wide_row_is_read_where_rows_have_no_key() -> None:
    rows = await bags()
    assert not rows.primary_key(Statement(Op.DELETE, "bag", "", [b"no record"]))


async def test_the_columns_that_an_update_of_a_whole_row_sets() -> None:
    shapes = {
        "t": shape("t"),
        "numbered": TableShape(
            ["id", "n"], [0], frozenset(), "", False, "numbered", updatable=False
        ),
        "bag": TableShape(["v"], [], frozenset(), "", False, "bag", "pgherd_gen.erase_7"),
    }

    async def describe(table: str) -> TableShape:
        return shapes[table]

    rows = RowStatements(describe)
    await rows.learn_tables(list(shapes))
    assert [rows.other_columns(table) for table in shapes] == ["010", "", ""]


async def test_a_row_that_may_be_there_is_inserted_or_updated() -> None:
    rows = await knowing("t")
    (prepared,) = rows.prepared(
        Plan([Wave([Statement(Op.PUT, "t", "010", ["(1,x,)"])])]), gid=5, prev=4
    )
    text = prepared.query.decode()
    assert (
        "INSERT INTO t AS o (id, v) OVERRIDING SYSTEM VALUE SELECT n.id, n.v FROM"
        " unnest($1::text[]::t[]) n ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING 1"
    ) in text
