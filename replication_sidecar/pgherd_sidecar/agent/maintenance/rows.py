"""Maintenance as the herd keeps it: ordinary rows, so all members have the same.

* ``turn`` has one row. A sidecar that takes its member out of service writes it, so of two that do
  at the same time one loses, wherever they are: certification orders them.
* ``schedule`` says what is to be done, again and again.
* ``run`` is one time that it is done, or something that was asked for once.
* ``part`` is what becomes of one member in a run.
"""

import uuid
from datetime import datetime
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import class_row

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.server.startup import conninfo

Connection = psycopg.AsyncConnection[Any]

KEPT_RUNS: Final = 100
"""Of more than that the oldest that are over are forgotten."""
CONFLICTS: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
_MAKE: Final = (
    "CREATE SCHEMA pgherd_maintenance",
    """
    CREATE TABLE pgherd_maintenance.turn (id int PRIMARY KEY, taken int8 NOT NULL)
    """,
    """
    CREATE TABLE pgherd_maintenance.schedule (
        name      text PRIMARY KEY,
        cron      text NOT NULL,
        time_zone text NOT NULL,
        work      text NOT NULL,
        known     timestamptz NOT NULL,  -- times up to this one were dealt with
        message   text NOT NULL
    )
    """,
    """
    CREATE TABLE pgherd_maintenance.run (
        id        text PRIMARY KEY,
        schedule  text NOT NULL,         -- whose time it is; '' if it was asked for once
        work      text NOT NULL,
        created   timestamptz NOT NULL,
        cancelled bool NOT NULL
    )
    """,
    """
    CREATE TABLE pgherd_maintenance.part (
        run    text REFERENCES pgherd_maintenance.run ON DELETE CASCADE,
        member text,
        state  text NOT NULL,            -- waiting, working, done, failed, cancelled
        token  text NOT NULL,            -- of the sidecar's session that works
        begun  timestamptz,
        ended  timestamptz,
        error  text NOT NULL,
        PRIMARY KEY (run, member)
    )
    """,
    "INSERT INTO pgherd_maintenance.turn VALUES (1, 0)",
    # A role that may write all tables (pg_write_all_data) must not have superusers execute it.
    *(
        f"ALTER TABLE pgherd_maintenance.{table} ENABLE ROW LEVEL SECURITY"
        for table in ("turn", "schedule", "run", "part")
    ),
)
_PARTS: Final = """
SELECT p.run, p.member, p.state, p.token, p.begun, p.ended, p.error,
       r.schedule, r.work, r.created, r.cancelled, clock_timestamp() AS now
  FROM pgherd_maintenance.part p JOIN pgherd_maintenance.run r ON r.id = p.run
"""
_OPEN: Final = (
    f"{_PARTS} WHERE p.state IN ('waiting', 'working') ORDER BY r.created, r.id, p.member"
)
_ALL: Final = f"{_PARTS} ORDER BY r.created DESC, r.id, p.begun, p.member"
_TAKE_TURN: Final = "UPDATE pgherd_maintenance.turn SET taken = taken + 1 WHERE id = 1"
_CLAIM: Final = """
UPDATE pgherd_maintenance.part SET state = 'working', token = %s, begun = clock_timestamp()
 WHERE run = %s AND member = %s AND state = 'waiting'
"""
_FINISH: Final = """
UPDATE pgherd_maintenance.part SET state = %s, error = %s, ended = clock_timestamp()
 WHERE run = %s AND member = %s AND state = %s AND token = %s
"""
_SCHEDULES: Final = """
SELECT name, cron, time_zone, work, known, message, clock_timestamp() AS now
  FROM pgherd_maintenance.schedule ORDER BY name
"""
_DEALT_WITH: Final = """
UPDATE pgherd_maintenance.schedule SET known = %s, message = %s WHERE name = %s AND known < %s
"""
_ADD_RUN: Final = """
INSERT INTO pgherd_maintenance.run VALUES (%s, %s, %s, clock_timestamp(), false)
ON CONFLICT DO NOTHING
"""
_ADD_PART: Final = (
    "INSERT INTO pgherd_maintenance.part VALUES (%s, %s, 'waiting', '', NULL, NULL, '')"
)
_FORGET: Final = """
DELETE FROM pgherd_maintenance.run WHERE id IN (
    SELECT r.id FROM pgherd_maintenance.run r
     WHERE NOT EXISTS (SELECT FROM pgherd_maintenance.part p
                        WHERE p.run = r.id AND p.state IN ('waiting', 'working'))
     ORDER BY r.created DESC OFFSET %s)
"""


class WantedWork(msgspec.Struct, frozen=True):
    """Work to do, on each of some members.

    Attributes:
        statements: executed one after the other, each for itself.
        members: their names; none: all that vote and have a database.
        one_by_one: none begins before the one before it is in service again.
        drain: the member is taken out of service meanwhile.
        grace_s: so long sessions of clients have to end by themselves.
        deadline_s: so long the statements may take on one member.
    """

    statements: tuple[str, ...]
    members: tuple[str, ...] = ()
    one_by_one: bool = False
    drain: bool = False
    grace_s: float = 30.0
    deadline_s: float = 21600.0


class MemberPart(msgspec.Struct, frozen=True):
    """A row of ``part``, with what its ``run`` says, and the server's time ``now``."""

    run: str
    member: str
    state: str
    token: str
    begun: datetime | None
    ended: datetime | None
    error: str
    schedule: str
    work: str
    created: datetime
    cancelled: bool
    now: datetime

    @property
    def wanted(self) -> WantedWork:
        """The work that is to be done."""
        return msgspec.json.decode(self.work, type=WantedWork)


class KeptSchedule(msgspec.Struct, frozen=True):
    """A row of ``schedule``, and the server's time ``now``."""

    name: str
    cron: str
    time_zone: str
    work: str
    known: datetime
    message: str
    now: datetime

    @property
    def wanted(self) -> WantedWork:
        """The work that is to be done."""
        return msgspec.json.decode(self.work, type=WantedWork)


async def connect(config: NodeConfig, name: str) -> Connection:
    """A session as clients have them: what it writes is ordered.

    Raises:
        psycopg.Error: the server is gone.
    """
    return await Connection.connect(conninfo(config, name), autocommit=True)


async def is_kept(connection: Connection) -> bool:
    """Are there tables for it in this herd?"""
    row = await (await connection.execute("SELECT pgherd.keeps_maintenance()")).fetchone()
    return row is not None and bool(row[0])


async def make(connection: Connection) -> None:
    """Make the tables, unless they are there.

    Raises:
        psycopg.Error: the herd says no.
    """
    async with connection.transaction():
        for statement in _MAKE:
            await connection.execute(statement)


async def open_parts(connection: Connection) -> list[MemberPart]:
    """The parts that are not over, in the order in which they were asked for."""
    cursor = connection.cursor(row_factory=class_row(MemberPart))
    return await (await cursor.execute(_OPEN)).fetchall()


async def all_parts(connection: Connection) -> list[MemberPart]:
    """All that is remembered, the newest run first."""
    cursor = connection.cursor(row_factory=class_row(MemberPart))
    return await (await cursor.execute(_ALL)).fetchall()


async def schedules(connection: Connection) -> list[KeptSchedule]:
    """All schedules, by name."""
    cursor = connection.cursor(row_factory=class_row(KeptSchedule))
    return await (await cursor.execute(_SCHEDULES)).fetchall()


async def take_turn(connection: Connection) -> None:
    """Conflict with whoever takes a member out of service; within a transaction."""
    await connection.execute(_TAKE_TURN)


async def claim(connection: Connection, part: MemberPart, token: str) -> bool:
    """Begin a part that waits; within a transaction; False if it does not wait any more."""
    return (await connection.execute(_CLAIM, (token, part.run, part.member))).rowcount == 1


async def finish(connection: Connection, part: MemberPart, state: str, error: str) -> None:
    """Say what became of a part, unless somebody else has.

    Raises:
        psycopg.Error: the herd says no.
    """
    values = (state, error[:1000], part.run, part.member, part.state, part.token)
    await connection.execute(_FINISH, values)


async def begin(
    connection: Connection,
    work: WantedWork,
    members: list[str],
    *,
    run: str = "",
    schedule: str = "",
) -> str:
    """Ask for a run; return its name. One that there is already is not begun again.

    Args:
        members: their names.
        run: the name that it gets; by default one that is new.
        schedule: whose time it is.
    """
    run = run or uuid.uuid4().hex[:8]
    async with connection.transaction():
        await connection.execute(_FORGET, (KEPT_RUNS - 1,))
        text = msgspec.json.encode(work).decode()
        added = await connection.execute(_ADD_RUN, (run, schedule, text))
        for member in members if added.rowcount else ():
            await connection.execute(_ADD_PART, (run, member))
    return run


async def deal_with(
    connection: Connection, schedule: KeptSchedule, due: datetime, message: str, members: list[str]
) -> bool:
    """A time of a schedule has come: begin its run, or note why not.

    Args:
        message: why there is none this time; empty if there is.
        members: of the run.

    Returns:
        Whether nobody else has dealt with it before.
    """
    run = f"{schedule.name}-{int(due.timestamp()) // 60}"
    async with connection.transaction():
        values = (due, message, schedule.name, due)
        if (await connection.execute(_DEALT_WITH, values)).rowcount == 0:
            return False
        if not message:
            await begin(connection, schedule.wanted, members, run=run, schedule=schedule.name)
    return True


async def put_schedule(
    connection: Connection, name: str, cron: str, time_zone: str, work: WantedWork
) -> None:
    """Make a schedule, or change it: its times count from now on."""
    await connection.execute(
        "INSERT INTO pgherd_maintenance.schedule VALUES (%s, %s, %s, %s, clock_timestamp(), '')"
        " ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, time_zone = excluded.time_zone,"
        " work = excluded.work, known = excluded.known, message = ''",
        (name, cron, time_zone, msgspec.json.encode(work).decode()),
    )


async def drop_schedule(connection: Connection, name: str) -> bool:
    """Forget a schedule; what it has begun goes on. False if there is none."""
    statement = "DELETE FROM pgherd_maintenance.schedule WHERE name = %s"
    return (await connection.execute(statement, (name,))).rowcount == 1


async def cancel(connection: Connection, run: str) -> bool:
    """Have a run end; what waits for its turn is over at once. False if there is none of it."""
    async with connection.transaction():
        await take_turn(connection)
        found = await connection.execute(
            "UPDATE pgherd_maintenance.run SET cancelled = true WHERE id = %s", (run,)
        )
        await connection.execute(
            "UPDATE pgherd_maintenance.part SET state = 'cancelled', ended = clock_timestamp(),"
            " error = 'cancelled before its turn' WHERE run = %s AND state = 'waiting'",
            (run,),
        )
    return found.rowcount == 1
