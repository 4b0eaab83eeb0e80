"""What a command costs grows with the number of partitions, and not with its square.

Counted are calls of pgherd's functions, and rows that were read of catalogs by which tables are
looked for. Each command is rolled back, so that all find the same tables.
"""

import pytest

from .members import Connection, run

pytestmark = pytest.mark.usefixtures("schema_is_everywhere")

FEW, SOME, MANY = 1, 6, 21
"""What one partition costs a command costs anyway. From ``FEW`` on, ``MANY`` have four times more
others than ``SOME``."""
_MOST_TIMES = 6

_PARTITIONED = (
    "CREATE TABLE p{0} (id int PRIMARY KEY, a int CHECK (a > 0), b text) PARTITION BY RANGE (id);"
    "CREATE TABLE r{0} (id int PRIMARY KEY, p int REFERENCES p{0});"
    "CREATE INDEX b{0} ON p{0} (b)"
)
_PARTITION = "CREATE TABLE p{0}_{1} PARTITION OF p{0} FOR VALUES FROM ({1}0) TO ({1}9)"
_PARENT = "CREATE TABLE h{0} (id int, b text)"
_CHILD = "CREATE TABLE h{0}_{1} () INHERITS (h{0})"

#: What is there before, and the command.
COMMANDS = {
    "add a column": ("", "ALTER TABLE p{0} ADD COLUMN c int"),
    "add a column to children": ("", "ALTER TABLE h{0} ADD COLUMN c int"),
    "add a constraint": ("", "ALTER TABLE p{0} ADD CHECK (id <> 5)"),
    "make a partition": ("", _PARTITION.format("{0}", 70)),
    "attach": (
        "CREATE TABLE x (id int PRIMARY KEY, a int, b text, CONSTRAINT p{0}_a_check CHECK (a > 0))",
        "ALTER TABLE p{0} ATTACH PARTITION x FOR VALUES FROM (700) TO (709)",
    ),
    "detach": ("", "ALTER TABLE p{0} DETACH PARTITION p{0}_0"),
    "make an index": ("", "CREATE INDEX ON p{0} (a)"),
    "drop an index": ("", "DROP INDEX b{0}"),
    "refer to it": ("", "CREATE TABLE x (id int PRIMARY KEY, p int REFERENCES p{0})"),
    "drop it": ("", "DROP TABLE p{0}, r{0}"),
}


@pytest.fixture
async def admin(admins: list[Connection]) -> Connection:
    """A superuser's session, which counts calls, with tables of three sizes."""
    connection = admins[0]
    await run(connection, "SET track_functions = 'all'")
    for size in (FEW, SOME, MANY):
        tables = [_PARTITIONED.format(size), _PARENT.format(size)]
        tables += [made.format(size, i) for i in range(size) for made in (_PARTITION, _CHILD)]
        await run(connection, ";".join(tables))
    return connection


async def counted(admin: Connection) -> tuple[dict[str, int], int]:
    """How often each function was called so far, and how many rows were read."""
    calls: dict[str, int] = {}
    for name, number in await run(
        admin, "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE schemaname = 'pgherd'"
    ):
        calls[name] = calls.get(name, 0) + number
    ((rows,),) = await run(
        admin,
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int8"
        " FROM pg_stat_xact_all_tables"
        " WHERE relid IN ('pg_inherits'::regclass, 'pgherd.tables'::regclass)",
    )
    return calls, rows or 0


async def cost(admin: Connection, before: str, command: str) -> tuple[dict[str, int], int]:
    """Calls by function and rows read of a command that is not done in the end."""
    await run(admin, "BEGIN")
    try:
        if before:
            await run(admin, before)
        calls_before, rows_before = await counted(admin)
        await run(admin, command)
        calls, rows = await counted(admin)
    finally:
        await run(admin, "ROLLBACK")
    more = {name: number - calls_before.get(name, 0) for name, number in calls.items()}
    return more, rows - rows_before


async def test_a_command_costs_in_proportion_to_the_partitions(admin: Connection) -> None:
    too_much = {}
    for name, (before, command) in COMMANDS.items():
        few, some, many = [
            (sum(calls.values()), rows)
            for calls, rows in [
                await cost(admin, before.format(size), command.format(size))
                for size in (FEW, SOME, MANY)
            ]
        ]
        for what, few_of, some_of, many_of in zip(("calls", "rows"), few, some, many, strict=True):
            if many_of - few_of > _MOST_TIMES * max(some_of - few_of, 0):
                too_much[f"{name}: {what}"] = (few_of, some_of, many_of)
    assert not too_much
    calls, _ = await cost(admin, "", "CREATE TABLE y (id int PRIMARY KEY, a int CHECK (a > 0))")
    assert calls["is_certain"] < MANY  # it judges no expression of another table
