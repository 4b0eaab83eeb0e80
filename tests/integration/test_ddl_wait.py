"""The client hears of a command when the other members show it, or after ``pgherd.ddl_wait``."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
from patience import join, wait_until
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.local.herd import load

from .localherd import LocalHerd, home, stopped
from .nodes import Connection, Nodes, once, run

LATE = "committed, and perhaps not visible yet on "
FOR_EVER = "SET pgherd.ddl_wait = '10min'"
WAITS_LONG = """
    SELECT count(*) = 1 FROM pg_locks l JOIN pg_stat_activity s USING (pid)
     WHERE s.application_name = 'pgherd apply' AND NOT l.granted
       AND clock_timestamp() - l.waitstart > '500 ms'
"""
"""Many times as long as until somebody looks who is in the way."""


def said_to(session: Connection) -> list[str]:
    """Collect what the session's notices say from now on."""
    said: list[str] = []
    session.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    return said


@contextlib.contextmanager
def applying_nothing(nodes: Nodes, number: int) -> Iterator[None]:
    """Have a member hear of everything and show nothing new."""
    writers = run(
        nodes.admin[number],
        "SELECT pid FROM pg_stat_activity WHERE application_name IN ('pgherd apply', 'pgherd ddl')",
    )
    with stopped(*(pid for (pid,) in writers)):
        yield


def test_the_next_session_anywhere_finds_what_was_made(nodes: Nodes) -> None:
    sessions = [nodes.connect(number) for number in range(3)]
    for session in sessions:
        run(session, FOR_EVER)
    for number in range(9):
        # A member that has not seen the command before would lose: 40001. Nothing is repeated.
        once(sessions[number % 3], f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        for session in sessions:
            assert once(session, f"TABLE t{number}") == []
    once(sessions[0], "BEGIN; CREATE TABLE two (id int); INSERT INTO two VALUES (1); COMMIT")
    assert once(sessions[2], "TABLE two") == [(1,)]


def test_a_member_that_is_late_is_named_and_nobody_waits_for_it_again(nodes: Nodes) -> None:
    session = nodes.connect(0)
    said = said_to(session)
    with applying_nothing(nodes, 2):
        run(session, "SET pgherd.ddl_wait = '200ms'")
        run(session, "CREATE TABLE t (id int PRIMARY KEY)")
        assert said == [LATE + "n3"]
        assert run(nodes.connect(1), "TABLE t") == []
        run(session, FOR_EVER)
        run(session, "ALTER TABLE t ADD COLUMN v int")  # else it would not come to an end
        assert said == [LATE + "n3"] * 2
        run(session, "SET pgherd.ddl_wait = 0")
        run(session, "ALTER TABLE t ADD COLUMN w int")
        assert len(said) == 2

    def said_again() -> list[str]:
        said.clear()
        run(session, "COMMENT ON TABLE t IS 'again'")
        return said.copy()

    run(session, FOR_EVER)
    wait_until(said_again, lambda said: not said)
    run(session, "ALTER TABLE t ADD COLUMN x int")
    assert said == []
    assert run(nodes.connect(2), "SELECT x FROM t") == []


def test_nobody_has_others_wait_for_longer_than_a_minute(nodes: Nodes) -> None:
    for setting, waits_ms in (("9999999min", 60_000), ("2min", 60_000), ("90s", 60_000), ("5", 5)):
        asked = f"SET pgherd.ddl_wait = '{setting}'; SELECT pgherd.ddl_wait_ms()"
        assert run(nodes.admin[0], asked) == [(waits_ms,)]


def test_a_cancel_ends_the_wait_and_not_the_commit(nodes: Nodes) -> None:
    session = nodes.connect(0)
    run(session, FOR_EVER)
    pid = session.info.backend_pid
    with applying_nothing(nodes, 2):
        making = threading.Thread(
            target=partial(run, session, "CREATE TABLE t (id int PRIMARY KEY)"), daemon=True
        )
        making.start()
        wait_until(lambda: run(nodes.connect(1), "SELECT to_regclass('t')") != [(None,)])
        assert making.is_alive()
        run(nodes.admin[0], f"SELECT pg_cancel_backend({pid})")
        join(making)
        assert run(session, "TABLE t") == []


def test_a_marker_behind_it_takes_nothing_from_it(nodes: Nodes, herd: LocalHerd) -> None:
    session = nodes.connect(0)
    run(session, FOR_EVER)
    heard: list[object] = []
    making = threading.Thread(
        target=lambda: heard.append(once(session, "CREATE TABLE t (id int PRIMARY KEY)")),
        daemon=True,
    )
    admin = AdminClient(load(home(herd)).node("n1").admin_socket)
    with applying_nothing(nodes, 2):
        making.start()
        wait_until(lambda: run(nodes.connect(1), "SELECT to_regclass('t')") != [(None,)])
        marker = asyncio.run(admin.order_marker(["n1"]))
        wait_until(lambda: run(nodes.admin[0], WAITS_LONG) == [(True,)])
        assert making.is_alive()
    join(making)
    assert heard == [[]]
    asyncio.run(admin.drop_marker(marker.id))


def test_what_is_no_time_is_refused_before_anything_is_ordered(nodes: Nodes) -> None:
    session = nodes.connect(0)
    for value in ("soon", "-1", "1 h", "12345678"):
        session.execute("SELECT set_config('pgherd.ddl_wait', %s, false)", (value,))
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no time") as error:
            run(session, "CREATE TABLE t (id int PRIMARY KEY)")
        assert "0 waits for nobody" in (error.value.diag.message_hint or "")
    run(session, "CREATE TEMP TABLE own (id int)")
    run(session, "SET pgherd.ddl_wait = 100")
    run(session, "CREATE TABLE t (id int PRIMARY KEY)")
