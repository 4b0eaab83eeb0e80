"""Whatever way a transaction ends, its writes are certified before they commit (C1, C2, C4).

Each case leaves rows in ``t``; what committed on the first node must be on all of them, each
committed transaction must have its row in the commit chain, and no node may have stopped.
"""

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest
from patience import wait_until

from .localherd import NATIVE, LocalHerd, sidecar_pid, stopped
from .nodes import Connection, Nodes, nodes_of, run, sql_cases, sql_file

ENDINGS = sql_cases("hook_endings")
if NATIVE:  # there is no such cursor then, which is an error
    del ENDINGS["our cursor closed before the commit"]
BY_CURSOR = pytest.mark.skipif(NATIVE, reason="the native module needs no cursor")
BY_MODULE = pytest.mark.skipif(not NATIVE, reason="the SQL hook is a cursor itself")
LEAKS = "SELECT coalesce(cardinality(leaks), 0) FROM pgherd.audit(pgherd.audited_until())"
IS_BLOCKED = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        nodes.create(sql_file("hook_tables"))
        run(nodes.admin[0], sql_file("hook_trigger"))
        nodes.settle()
        yield nodes


@pytest.fixture
def emptied(nodes: Nodes) -> Nodes:
    run(nodes.app[0], "TRUNCATE t, u")
    nodes.settle()
    return nodes


@pytest.mark.family(every=3)
@pytest.mark.parametrize("script", ENDINGS.values(), ids=ENDINGS)
def test_the_transaction_is_certified(emptied: Nodes, script: str) -> None:
    session = emptied.connect(0)
    run_all(session, script)
    assert emptied.equal_rows("t", "u")
    assert run(emptied.admin[0], LEAKS) == [(0,)]


@pytest.mark.parametrize("script", ENDINGS.values(), ids=ENDINGS)
def test_the_next_transaction_of_the_session_is_too(emptied: Nodes, script: str) -> None:
    session = emptied.connect(0)
    run_all(session, script)
    run(session, "INSERT INTO t VALUES (1000)")
    assert "(1000,)" in emptied.equal_rows("t")
    assert run(emptied.admin[0], LEAKS) == [(0,)]


def run_all(session: Connection, script: str) -> None:
    for message in script.split("\n----\n"):
        run(session, message)


def test_pipelined_statements_of_the_extended_protocol(emptied: Nodes) -> None:
    session = emptied.connect(0)
    with session.pipeline():
        for number in range(20):
            session.execute("INSERT INTO t VALUES (%s)", (number,), prepare=True)
    assert len(emptied.equal_rows("t")) == 20
    assert run(emptied.admin[0], LEAKS) == [(0,)]


def test_copy(emptied: Nodes) -> None:
    with emptied.app[0].cursor().copy("COPY t (id) FROM STDIN") as copy:
        for number in range(2500):
            copy.write_row((number,))
    assert len(emptied.equal_rows("t")) == 2500


def test_a_copy_that_is_given_up_leaves_nothing(emptied: Nodes) -> None:
    copying = emptied.app[0].cursor().copy("COPY t (id) FROM STDIN")
    with pytest.raises(ValueError), copying as copy:
        copy.write_row((1,))
        raise ValueError("given up")
    assert emptied.equal_rows("t") == []


def test_prepare_transaction_is_refused(emptied: Nodes) -> None:
    run(emptied.app[0], "BEGIN; INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="written replicated tables"):
        run(emptied.app[0], "PREPARE TRANSACTION 'x'")
    assert emptied.equal_rows("t") == []


@pytest.mark.parametrize("early", ["SET CONSTRAINTS ALL IMMEDIATE", "EXECUTE early"])
def test_our_cursor_is_not_there_before_commit(emptied: Nodes, early: str) -> None:
    """A FETCH from it would have the transaction ordered before it has ended (C2)."""
    session = emptied.connect(0)
    session.pgconn.prepare(b"early", b"SET CONSTRAINTS ALL IMMEDIATE")
    run(session, f"BEGIN; INSERT INTO t VALUES (1); {early}")
    with pytest.raises(psycopg.errors.InvalidCursorName):
        run(session, "FETCH ALL FROM pgherd_commit")
    run(session, "ROLLBACK")
    assert emptied.equal_rows("t") == []


@pytest.mark.parametrize("divided", [True, False])
def test_the_protocol_may_prepare_what_fires_the_hook_early(emptied: Nodes, divided: bool) -> None:
    """The message that executes it does not hold its words."""
    session = emptied.connect(0)
    session.pgconn.prepare(b"early", b"SET CONSTRAINTS ALL IMMEDIATE")
    messages = ["BEGIN; INSERT INTO t VALUES (1)", "EXECUTE early", "CLOSE ALL"]
    messages += ["EXECUTE early", "CLOSE ALL; INSERT INTO t VALUES (2)", "COMMIT"]
    for message in messages if divided else ["; ".join(messages)]:
        run(session, message)
    assert run(session, "SELECT pgherd.last_commit_gid()") != [(None,)]  # else it is a leak
    assert emptied.equal_rows("t") == ["(1,)", "(2,)"]


@BY_CURSOR
@pytest.mark.parametrize("what", ["write_u(7)", "execute('CLOSE ALL')", "1 / (n - n)"])
def test_other_holdable_cursors_are_refused(emptied: Nodes, what: str) -> None:
    """Whatever their names are, which decide whether PostgreSQL runs them before ours."""
    session = emptied.connect(0)
    for number in range(20):
        run(session, "BEGIN; INSERT INTO t VALUES (1)")
        declare = (
            f"DECLARE c{number} CURSOR WITH HOLD FOR SELECT {what} FROM generate_series(1, 1) n"
        )
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="WITH HOLD"):
            run(session, f"{declare}; SET CONSTRAINTS ALL IMMEDIATE; COMMIT")
        run(session, "ROLLBACK")
    assert emptied.equal_rows("t", "u") == []


@BY_CURSOR
@pytest.mark.parametrize("then", ["", "COMMIT; INSERT INTO t VALUES (2);"])
def test_a_procedure_cannot_leave_a_holdable_cursor_that_fails(emptied: Nodes, then: str) -> None:
    """Its transaction may be younger than the message; what fails must not have been ordered."""
    session = emptied.connect(0)
    declare = "EXECUTE 'DECLARE mine CURSOR WITH HOLD FOR SELECT 1 / (n - n) FROM u n(n)'"
    run(session, "INSERT INTO u VALUES (1)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="WITH HOLD"):
        run(session, f"DO $$ BEGIN INSERT INTO t VALUES (1); {then} {declare}; COMMIT; END $$")
    assert emptied.equal_rows("t") == (["(1,)"] if then else [])


@BY_MODULE
def test_what_a_holdable_cursor_writes_in_commit_is_certified(emptied: Nodes) -> None:
    """PostgreSQL runs it before the module is called, so nothing is left to run afterwards."""
    session = emptied.connect(0)
    run(session, "BEGIN; INSERT INTO t VALUES (1)")
    run(session, "DECLARE mine CURSOR WITH HOLD FOR SELECT write_u(7); COMMIT")
    assert emptied.equal_rows("t", "u") == ["(1,)", "(7)"]
    assert run(emptied.admin[0], LEAKS) == [(0,)]


@BY_MODULE
def test_a_holdable_cursor_that_fails_in_commit_leaves_nothing(emptied: Nodes) -> None:
    session = emptied.connect(0)
    run(session, "BEGIN; INSERT INTO t VALUES (1)")
    run(
        session, "DECLARE mine CURSOR WITH HOLD FOR SELECT 1 / (n - n) FROM generate_series(1, 1) n"
    )
    with pytest.raises(psycopg.errors.DivisionByZero):
        run(session, "COMMIT")
    assert emptied.equal_rows("t") == []


def test_a_transaction_that_became_read_only_is_refused(emptied: Nodes) -> None:
    session = emptied.connect(0)
    run(session, "BEGIN; INSERT INTO t VALUES (1); SET TRANSACTION READ ONLY")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="read-only"):
        run(session, "COMMIT")
    assert emptied.equal_rows("t") == []


def test_who_sits_on_the_lock_of_a_coming_commit_loses_the_session(emptied: Nodes) -> None:
    session, squatter = emptied.connect(0), emptied.connect(0)
    run(session, "BEGIN; INSERT INTO t VALUES (1)")
    [(key,)] = session.execute("SELECT pg_current_xact_id()::text::int8 + 5785081970366611456")
    run(squatter, f"SELECT pg_advisory_lock({key})")
    run(session, "COMMIT")
    with pytest.raises(psycopg.OperationalError):
        run(squatter, "SELECT 1")
    assert emptied.equal_rows("t") == ["(1,)"]


def test_a_holdable_cursor_of_an_earlier_transaction_is_allowed(emptied: Nodes) -> None:
    session = emptied.connect(0)
    run(session, "BEGIN; DECLARE mine CURSOR WITH HOLD FOR SELECT generate_series(1, 3); COMMIT")
    run(session, "INSERT INTO t VALUES (1)")
    assert run(session, "FETCH ALL FROM mine") == [(1,), (2,), (3,)]
    assert len(emptied.equal_rows("t")) == 1


def test_an_error_of_the_users_deferred_trigger_rolls_back(emptied: Nodes) -> None:
    with pytest.raises(psycopg.errors.RaiseException):
        run(emptied.app[0], "BEGIN; INSERT INTO t VALUES (-1); COMMIT")
    run(emptied.app[0], "ROLLBACK")
    assert emptied.equal_rows("t") == []


def test_writes_at_serializable_are_refused_and_reads_are_not(emptied: Nodes) -> None:
    session = emptied.connect(0)
    run(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM t; COMMIT")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        run(session, "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO t VALUES (1)")
    run(session, "ROLLBACK")
    assert emptied.equal_rows("t") == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_the_client_is_told_40001_with_table_key_and_winner(emptied: Nodes, level: str) -> None:
    loser = emptied.connect(0)
    run(emptied.app[0], "INSERT INTO t VALUES (1, 'a')")
    emptied.settle()
    run(loser, f"BEGIN ISOLATION LEVEL {level}; INSERT INTO t VALUES (2)")
    run(loser, "UPDATE t SET v = 'loser' WHERE id = 1")
    run(emptied.app[1], "UPDATE t SET v = 'winner' WHERE id = 1")
    with pytest.raises(psycopg.errors.SerializationFailure) as lost:
        run(loser, "COMMIT")
    detail = lost.value.diag.message_detail or ""
    assert "Row (1,)" in detail and f"{emptied.schema}.t" in detail and "winner GID" in detail
    assert set(emptied.equal_rows("t")) == {"(1,winner)"}


@pytest.mark.parametrize(
    ("setting", "held_s"), [("statement_timeout = '2s'", 2.5), ("lock_timeout = 50", 0.5)]
)
def test_a_timeout_after_the_verdict_does_not_read_as_an_abort(
    emptied: Nodes, setting: str, held_s: float
) -> None:
    session = emptied.connect(0)
    run(session, f"SET {setting}")
    with held_up_after_its_verdict(emptied, session) as outcome:
        run(emptied.admin[1], f"SELECT pg_sleep({held_s})")
    assert outcome == [None]
    assert len(emptied.equal_rows("t")) == 1


def test_a_cancel_after_the_verdict_does_not_read_as_an_abort(emptied: Nodes) -> None:
    session = emptied.connect(0)
    with held_up_after_its_verdict(emptied, session) as outcome:
        for _ in range(5):
            run(emptied.admin[1], "SELECT pg_sleep(0.02)")
            run(emptied.admin[0], f"SELECT pg_cancel_backend({session.info.backend_pid})")
    assert outcome == [None]
    assert len(emptied.equal_rows("t")) == 1


def test_a_cancel_while_another_is_dealt_with_does_not_read_as_an_abort(
    emptied: Nodes, herd: LocalHerd
) -> None:
    """The first makes certify() ask its sidecar, which does not answer until the others came."""
    session = emptied.connect(0)
    cancel = f"SELECT pg_cancel_backend({session.info.backend_pid})"
    with held_up_after_its_verdict(emptied, session) as outcome, stopped_sidecar(herd, "n1"):
        for _ in range(3):
            run(emptied.admin[0], cancel)
            run(emptied.admin[0], "SELECT pg_sleep(0.05)")
    assert outcome == [None]
    assert len(emptied.equal_rows("t")) == 1


@contextlib.contextmanager
def stopped_sidecar(herd: LocalHerd, node: str) -> Iterator[None]:
    """SIGSTOP for as long as the block lasts."""
    try:
        with stopped(sidecar_pid(herd, node)):
            yield
    finally:
        # An election, if it was the proposer.
        wait_until(herd.members, lambda seen: {one["state"] for one in seen} == {"primary"})


def test_a_backend_terminated_after_the_verdict_commits_all_the_same(emptied: Nodes) -> None:
    session = emptied.connect(0)
    with held_up_after_its_verdict(emptied, session) as outcome:
        run(emptied.admin[0], f"SELECT pg_terminate_backend({session.info.backend_pid})")
    assert isinstance(outcome[0], psycopg.OperationalError)
    assert len(emptied.equal_rows("t")) == 1


@contextlib.contextmanager
def held_up_after_its_verdict(
    nodes: Nodes, session: Connection
) -> Iterator[list[BaseException | None]]:
    """A transaction that was ordered and waits to write its row of the commit chain."""
    outcome: list[BaseException | None] = []
    holder = nodes.connect(0, admin=True)
    pid = session.info.backend_pid
    committing = threading.Thread(target=lambda: outcome.append(error_of(session)))
    run(holder, "BEGIN; LOCK TABLE pgherd.applied IN SHARE MODE")
    try:
        committing.start()
        while nodes.admin[0].execute(IS_BLOCKED, (pid,)).fetchone() != (True,):
            run(nodes.admin[1], "SELECT pg_sleep(0.01)")
        yield outcome
    finally:
        with contextlib.suppress(psycopg.OperationalError):  # ended, if the applier needed its lock
            run(holder, "ROLLBACK")
        committing.join()


def error_of(session: Connection) -> BaseException | None:
    try:
        run(session, "INSERT INTO t VALUES (2)")
    except psycopg.Error as error:
        return error
    return None


def test_an_idle_server_is_not_written_to(nodes: Nodes) -> None:
    """Each look at what has ended would use up an xid else, and make the next look due."""
    admin = nodes.admin[0]
    nodes.settle()
    wait_until(
        lambda: run(admin, "SELECT pgherd.audited_until()"), lambda found: found != [("1:1:/0",)]
    )
    looks = "SELECT pgherd.prune(0, 0, pgherd.audited_until())"
    assert run(admin, f"BEGIN; {looks}; {looks}; SELECT pg_current_xact_id_if_assigned()") == [
        (None,)
    ]
    run(admin, "ROLLBACK")


def test_a_transaction_that_is_open_for_long_keeps_no_other_from_being_audited_and_pruned(
    nodes: Nodes,
) -> None:
    admin, session = nodes.admin[0], nodes.connect(0)
    run(session, "BEGIN; SELECT pg_current_xact_id()")
    run(nodes.app[0], "TRUNCATE t")
    ((before,),) = run(admin, "SELECT audited FROM pgherd.audit(pgherd.audited_until())")
    run(nodes.app[0], "INSERT INTO t VALUES (1)")
    ((leaks, audited),) = run(admin, f"SELECT leaks, audited FROM pgherd.audit('{before}')")
    assert leaks is None
    seen = f"c.xid >= pg_snapshot_xmax(pgherd.snapshot_of('{audited}'))"
    assert run(admin, f"SELECT count(*) FROM pgherd.capture_0 c WHERE {seen}") == [(0,)]
    assert run(admin, f"SELECT count(*) FROM pgherd.capture_1 c WHERE {seen}") == [(0,)]
    pruned = (
        f"SELECT pgherd.prune(0, pgherd.last_gid() + 1, '{audited}') > pgherd.gid_of('{audited}')"
    )
    left = f"SELECT count(*) FROM pgherd.applied WHERE gid <= pgherd.gid_of('{audited}')"
    run(admin, "BEGIN; DELETE FROM pgherd.audited")
    assert run(admin, pruned) == [(True,)]
    assert run(admin, left) == [(0,)]
    run(admin, "ROLLBACK")
    run(session, "ROLLBACK")
