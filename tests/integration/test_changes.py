"""The change stream: who follows it from the beginning has what the database has, at any member."""

import json
import random
from collections import defaultdict
from collections.abc import Iterator

import psycopg
import pytest
from patience import wait_until_async
from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import LoggedChange, Values
from pgherd_spark.reading import statements
from psycopg import sql

from .ledger import Ledger, create_everywhere
from .localherd import LocalHerd, put, query, settle
from .sparkherd import members_of

_SETTINGS = statements.load("session.sql")["settings"]
_KINDS = (
    "t text, n numeric, f float8, at timestamptz, b bytea, j jsonb, a int[], d interval, "
    '"Odd, name" text, twice int GENERATED ALWAYS AS (id * 2) STORED'
)
_VALUES = (
    "E'a \"q\" \\\\ (,\\n', '1.00', 0.1 + 0.2, 'infinity', '\\x00ff', '{\"a\": [1, null]}',"
    " '{{1,2},{3,4}}', '1 mon 2 days', ''"
)


class Copy:
    """Tables as the stream makes them: rows by table and key."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Values]] = defaultdict(dict)
        self.changes: list[LoggedChange] = []

    def updates(self, table: str) -> list[tuple[Values | None, Values | None]]:
        return [
            (one.key, one.values)
            for one in self.changes
            if one.op == "update" and one.table == table
        ]

    def take(self, change: LoggedChange) -> None:
        last = self.changes[-1] if self.changes else None
        assert last is None or (change.gid, change.number) > (last.gid, last.number)
        self.changes.append(change)
        if change.table is None:
            return
        rows, key = self.tables[change.table], str(change.key or change.values)
        match change.op:
            case "insert":
                assert change.values is not None and key not in rows
                rows[key] = dict(change.values)
            case "update":
                assert change.values is not None
                rows[key] |= change.values
            case "delete":
                rows.pop(key, None)
            case "truncate":
                rows.clear()


def in_database(dsn: str, table: str, key: tuple[str, ...]) -> dict[str, Values]:
    """The rows of a table likewise."""
    schema, _, name = table.partition(".")
    with psycopg.connect(dsn) as connection:
        connection.execute(_SETTINGS)
        found = connection.execute(
            sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, name.strip('"'))),
        )
        columns = [one.name for one in found.description or () if one.name != "twice"]
        texts = sql.SQL(", ").join(
            sql.SQL("format('%s', {0}) || CASE WHEN {0} IS NULL THEN NULL ELSE '' END").format(
                sql.Identifier(column)
            )
            for column in columns
        )
        query_ = sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier(schema, name.strip('"')))
        rows = [dict(zip(columns, row, strict=True)) for row in connection.execute(query_)]
    return {str({one: row[one] for one in key}): row for row in rows}


async def follow(log: ChangeLog, copy: Copy, after: int, through: int) -> None:
    async for changes in log.between(after, through):
        for change in changes:
            copy.take(change)


@pytest.fixture
def ledger(herd: LocalHerd) -> Iterator[Ledger]:
    ledger = Ledger(herd, f"c_{random.getrandbits(40):x}")
    yield ledger
    ledger.drop()


async def test_who_follows_the_stream_has_what_the_database_has_also_after_a_restart_and_ddl(
    herd: LocalHerd, ledger: Ledger
) -> None:
    clients = {name: member.admin for name, member in members_of(herd).items()}
    log = ChangeLog(list(clients.values()))
    start = await log.visible()
    await log.hold("test", start, 600)
    ledger.create()
    name, dsn = ledger.schema, herd.app_dsn("n2")
    query(dsn, f'CREATE TABLE {name}."T" (id int PRIMARY KEY, {_KINDS})')
    insert = f'INSERT INTO {name}."T" (id, t, n, f, at, b, j, a, d, "Odd, name")'
    async with ledger.load(clients=2):
        await ledger.commits(20)
        query(dsn, f"{insert} SELECT g, {_VALUES} FROM generate_series(1, 20) g")
        query(dsn, f"{insert} VALUES (100{', NULL' * 9})")
        query(dsn, f"CREATE TABLE {name}.ddl (id int PRIMARY KEY, a int, b int)")
        query(dsn, f"INSERT INTO {name}.ddl VALUES (1, 10, 20), (2, 11, 21)")
        query(
            dsn,
            f"BEGIN; UPDATE {name}.ddl SET a = 12 WHERE id = 1; ALTER TABLE {name}.ddl DROP a;"
            f" UPDATE {name}.ddl SET b = 22 WHERE id = 1; ALTER TABLE {name}.ddl ADD c int;"
            f" UPDATE {name}.ddl SET c = 30 WHERE id = 1; ALTER TABLE {name}.ddl RENAME b TO d;"
            f" UPDATE {name}.ddl SET d = 40 WHERE id = 2; COMMIT",
        )
        query(dsn, f"CREATE TABLE {name}.made AS SELECT g AS id FROM generate_series(1, 5) g")
        query(dsn, f"ALTER TABLE {name}.made ADD PRIMARY KEY (id)")
        query(dsn, f"TRUNCATE {name}.made; INSERT INTO {name}.made VALUES (7)")
    herd.must("kill", "n1", "--process", "sidecar")
    herd.must("start", "n1")
    async with ledger.load(clients=2):
        await ledger.commits(20)
    ledger.check()

    copy, through = Copy(), await ChangeLog([clients["n3"]]).visible()
    middle = (start + through) // 2
    await follow(
        ChangeLog([clients["n1"]]), copy, start, middle
    )  # its sidecar began anew meanwhile
    await follow(ChangeLog([clients["n2"], clients["n3"]]), copy, middle, through)
    for table in ("account", "ledger", '"T"', "made"):
        rows = in_database(herd.dsn("n3"), f"{name}.{table}", ("id",))
        assert copy.tables[f"{name}.{table}"] == rows
    assert copy.updates(f"{name}.ddl") == [
        ({"id": "1"}, {"a": "12"}),
        ({"id": "1"}, {"b": "22"}),
        ({"id": "1"}, {"c": "30"}),
        ({"id": "2"}, {"d": "40"}),
    ]
    said = herd.top("changes", "--after", str(start), "--through", str(through))
    assert said.returncode == 0, said.stderr
    printed = [json.loads(line) for line in said.stdout.splitlines()]
    assert printed == [change.fields() for change in copy.changes]
    again = Copy()
    await follow(ChangeLog([clients["n3"]]), again, start, through)
    assert again.changes == copy.changes


@pytest.mark.long
async def test_rows_of_transactions_in_pieces_come_at_their_commit_wherever_the_reader_begins(
    herd: LocalHerd, ledger: Ledger
) -> None:
    clients = {name: member.admin for name, member in members_of(herd).items()}
    log = ChangeLog(list(clients.values()))
    start = await log.visible()
    await log.hold("large", start, 600)
    ledger.create()
    table, dsn = f"{ledger.schema}.large", herd.app_dsn("n2")
    query(dsn, f"CREATE TABLE {table} (id int PRIMARY KEY, t text)")
    async with ledger.load(clients=2):
        text = "repeat('x', 200)"
        query(dsn, f"INSERT INTO {table} SELECT g, {text} FROM generate_series(1, 12000) g")
        query(dsn, f"UPDATE {table} SET t = t || id WHERE id > 9; DELETE FROM {table} WHERE id < 9")
        await ledger.commits(20)
    ledger.check()
    herd.must("kill", "n1", "--process", "sidecar")
    herd.must("start", "n1")

    copy, through = Copy(), await ChangeLog([clients["n3"]]).visible()
    await follow(ChangeLog([clients["n1"]]), copy, start, through)
    assert copy.tables[table] == in_database(herd.dsn("n1"), table, ("id",))
    of_both = [one for one in copy.changes if one.table == table]
    first, second = sorted({one.gid for one in of_both})
    alone = Copy()
    alone.tables[table] = {str(one.key): dict(one.values or {}) for one in of_both[:12000]}
    await follow(ChangeLog([clients["n3"]]), alone, second - 1, second)
    assert alone.changes == of_both[12000:]

    # Who goes on in the middle of the pieces still has those before.
    await log.hold("large", first - 1, 600)
    held = "SELECT held FROM pgherd.stream_hold WHERE stream = 'large'"
    positions = [query(node.dsn, held)[0][0] for node in herd.nodes()]
    assert len(set(positions)) == 1
    assert start <= positions[0] < first - 1


async def test_who_has_the_log_kept_is_shown_is_bounded_and_can_be_ruled_out(
    herd: LocalHerd,
) -> None:
    clients = {name: member.admin for name, member in members_of(herd).items()}
    log = ChangeLog(list(clients.values()))
    newest = await log.visible()
    await log.hold("left", newest, 600)
    dsn = herd.dsn("n2")
    query(dsn, f"SELECT pgherd.hold_log_for(7, 0, {newest}, 600)")
    query(dsn, f"SELECT pgherd.hold_log(900, 0, {newest}, 1e10)")
    holds = {"member:900", "snapshot:7", "stream:left"}

    async def shown() -> dict[str, str]:
        """What n2 holds, and until when: as it was seen at the last look."""
        return {one.hold: one.until for one in (await clients["n2"].status()).log_holds}

    await wait_until_async(
        shown, lambda found: holds <= found.keys() and found["member:900"] <= "2300"
    )
    for hold in ("member:900", "stream:left"):
        assert await clients["n2"].release_hold(hold)
    released = herd.top("release", "snapshot:7")
    assert released.stdout == "n2: nothing is kept for snapshot:7 any more\n", released.stderr
    await wait_until_async(shown, lambda found: not holds & found.keys())
    assert not await clients["n2"].release_hold("snapshot:7")


def test_who_wrote_a_row_and_what_happened_to_it(herd: LocalHerd, schema: str) -> None:
    one, two = herd.dsn("n1"), herd.dsn("n2")
    create_everywhere(herd, f"CREATE TABLE {schema}.w (a int, b text, v int, PRIMARY KEY (b, a))")
    gids = []
    for dsn, statement in (
        (one, f"INSERT INTO {schema}.w VALUES (1, 'x', 1), (2, 'x', 1)"),
        (two, f"UPDATE {schema}.w SET v = 2 WHERE a = 1"),
        (one, f"UPDATE {schema}.w SET v = 3 WHERE a = 2"),
        (two, f"UPDATE {schema}.w SET v = 4 WHERE a = 1"),
    ):
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())
            row = connection.execute("SELECT pgherd.last_commit_gid()").fetchone()
            assert row is not None
            gids.append(row[0])
        settle(herd)

    asked = f"SELECT gid, since FROM pgherd.gid_of_row('{schema}.w', 'x', '1')"
    assert query(two, asked) == [(gids[3], gids[3])]
    for node in ("n1", "n3"):
        ((gid, since),) = query(herd.dsn(node), asked)
        assert since <= gids[3] <= gid
    assert query(one, asked.replace("'1'", "'2'")) == [(gids[2], gids[2])]

    done = herd.top("history", f"{schema}.w", "x", "1", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["gid"], each["op"]) for each in told] == [
        (gids[0], "insert"), (gids[1], "update"), (gids[3], "update")
    ]  # fmt: skip
    assert done.stderr == ""
    put(herd, one, f"DELETE FROM {schema}.w WHERE a = 1")
    lines = herd.top("history", f"{schema}.w", "x", "1").stdout.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["n1", "n2", "n2", "n1"]
    assert lines[-1].endswith("delete")
    with pytest.raises(psycopg.errors.NoDataFound):
        query(one, asked)


@pytest.mark.long
def test_what_is_asked_wrongly_or_remembered_no_more(herd: LocalHerd, schema: str) -> None:
    create_everywhere(
        herd, f"CREATE TABLE {schema}.w (a int PRIMARY KEY); CREATE TABLE {schema}.k (a int)"
    )
    dsn = herd.dsn("n1")
    with psycopg.connect(dsn, autocommit=True) as connection:
        told: list[str | None] = []
        connection.add_notice_handler(lambda said: told.append(said.message_primary))
        asked = f"SELECT gid, since FROM pgherd.gid_of_row('{schema}.w', '1')".encode()
        with connection.transaction():
            connection.execute(f"INSERT INTO {schema}.w VALUES (1)".encode())
            assert connection.execute(asked).fetchone() == (None, None)
        assert told == ["this member does not remember which transaction wrote the row"]
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute(asked.replace(b"'1'", b"'1', '2'"))
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute(asked.replace(b".w'", b".k'"))
    query(herd.app_dsn("n1"), f"CREATE TABLE {schema}_own (a int PRIMARY KEY)")
    query(herd.app_dsn("n1"), f"INSERT INTO {schema}_own VALUES (1)")
    asked_by_app = f"SELECT gid > 0 FROM pgherd.gid_of_row('{schema}_own', '1')"
    assert query(herd.app_dsn("n1"), asked_by_app) == [(True,)]
    query(
        herd.dsn("n1"),
        "DROP EXTENSION IF EXISTS citext CASCADE;"  # of a file before this one
        f"CREATE EXTENSION citext SCHEMA {schema};"
        f"CREATE TABLE {schema}.c (a {schema}.citext, b varchar(3), PRIMARY KEY (a, b));"
        f"INSERT INTO {schema}.c VALUES ('Ann', 'x')",
    )
    by_another_name = f"SELECT gid > 0 FROM pgherd.gid_of_row('{schema}.c', 'ANN', 'x')"
    assert query(herd.dsn("n1"), by_another_name) == [(True,)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(
            herd.dsn("n1"),
            "CREATE TABLE hidden_w (a int PRIMARY KEY); INSERT INTO hidden_w VALUES (1)",
        )
        query(herd.app_dsn("n1"), "SELECT pgherd.gid_of_row('hidden_w', '1')")
    query(herd.dsn("n1"), f"DROP TABLE hidden_w, {schema}_own")
    none = herd.top("history", f"{schema}.w", "77")
    assert none.stdout == "" and "no transaction since GID" in none.stderr
    assert "give a value for each" in herd.top("history", f"{schema}.w", "1", "2").stderr
