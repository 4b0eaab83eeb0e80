"""What a command costs grows with the number of partitions, and not with its square.

Counted are calls of pgherd's functions, and rows that those read which look for tables of a tree.
Each command is rolled back, so that all find the same tables.
"""

from collections import Counter

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


async def calls_so_far(admin: Connection) -> Counter[str]:
    """How often the session has called each function."""
    calls: Counter[str] = Counter()
    for name, number in await run(
        admin, "SELECT funcname, calls FROM pg_stat_xact_user_functions WHERE schemaname = 'pgherd'"
    ):
        calls[name] += number
    return calls


async def calls_of(admin: Connection, before: str, command: str) -> Counter[str]:
    """Calls by a command that is not done in the end."""
    await run(admin, "BEGIN")
    try:
        await run(admin, before)
        known = await calls_so_far(admin)
        await run(admin, command)
        return await calls_so_far(admin) - known
    finally:
        await run(admin, "ROLLBACK")


async def rows_read(admin: Connection, function: str, size: int) -> int:
    """Rows of the catalog of trees that a function reads about a table."""
    read = "SELECT pg_stat_get_xact_tuples_returned(i) + pg_stat_get_xact_tuples_fetched(i)"
    indexes = "{pg_inherits,pg_inherits_parent_index,pg_inherits_relid_seqno_index}"
    read = f"SELECT sum(r)::int FROM ({read} AS r FROM unnest('{indexes}'::regclass[]) i) s"
    async with admin.transaction():
        ((before,),) = await run(admin, read)
        await run(admin, f"SELECT pgherd.{function.format(size)}")
        ((after,),) = await run(admin, read)
    return int(after - before)


async def test_a_command_costs_in_proportion_to_the_partitions(admin: Connection) -> None:
    totals: dict[str, tuple[int, ...]] = {}
    differences: dict[str, tuple[int, int]] = {}
    for name, (before, command) in COMMANDS.items():
        few, some, many = [
            await calls_of(admin, before.format(size) or "SELECT", command.format(size))
            for size in (FEW, SOME, MANY)
        ]
        totals[name] = (few.total(), some.total(), many.total())
        differences |= {
            f"{name}: {function}": (some[function], many[function])
            for function in ("trees_of", "why_uncertain", "counts_statements")
            if some[function] != many[function]
        }
    assert not differences  # what is the same for all partitions
    assert not {
        name: (few, some, many)
        for name, (few, some, many) in totals.items()
        if many - few > _MOST_TIMES * max(some - few, MANY)
    }
    # An expression is judged when it is new, and once where all partitions have it.
    for command in ("CREATE TABLE y (a int CHECK (a > 0))", f"DROP INDEX b{MANY}"):
        calls = await calls_of(admin, "SELECT", command)
        assert calls["is_certain"] < MANY, command
    for function in ("trees_of(ARRAY['p{0}'::regclass::oid])", "partitions('p{0}'::regclass)"):
        few_rows, some_rows, many_rows = [
            await rows_read(admin, function, size) for size in (FEW, SOME, MANY)
        ]
        assert 0 < many_rows - few_rows <= _MOST_TIMES * (some_rows - few_rows), function
