"""What the hook's socket answers, without a server or a log behind it."""

import asyncio
import contextlib
import socket
from array import array
from collections.abc import AsyncIterator, Callable, Hashable
from pathlib import Path
from time import monotonic
from typing import Any, cast

import msgspec
import pytest
from patience import until
from pgherd_sidecar.agent.base.defaults import HOOK_SOCKET
from pgherd_sidecar.agent.hook.connection import HookConnection
from pgherd_sidecar.agent.hook.server import HookServer
from pgherd_sidecar.agent.hook.voting import Veto
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.underway import Transaction, TransactionLimits
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    PIECE_KEYS,
    PIECE_LAST,
    PIECE_MORE,
    Piece,
    Writeset,
    iter_entries,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.state import Decision, DecisionKind
from pgherd_sidecar.pg.ddl.needs import Need

WRITE = b'4:7\n[["public.t",[4],["I(1,abc)"]]]'
LOST = Conflict(AbortReason.CONFLICT, 4, 9)


class Backend:
    """A replica that knows what the test says."""

    def __init__(self) -> None:
        self.conflict: Conflict | None = None
        self.asked: list[tuple[int, list[int]]] = []
        self.commands_lost: list[list[int]] = []
        self.waits = False
        self.polled: list[list[str]] = []
        self.veto: Veto | None = None
        self.voting: list[Callable[[Veto | None], None]] = []
        self.waiting: list[Callable[[], None]] = []
        self.readers: list[tuple[Hashable, float, bool]] = []
        self.announced: list[str] = []
        self.announcement = ("", "")

    def refusal(self) -> str | None:
        return None

    def held(self) -> bool:
        return False

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        wake()

    def preview(self, keys: "array[int]") -> Conflict | None:
        return self.conflict

    def begin_command(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        self.asked.append((xid, list(keys)))
        self.waiting.append(answer)
        if not self.waits:
            answer()

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        self.waiting.append(go)
        if not self.waits:
            go()

    def vote(
        self, keys: "array[int]", needs: list[Need], answer: Callable[[Veto | None], None]
    ) -> None:
        self.polled.append([need.name for need in needs])
        if not self.waits:
            answer(self.veto)
        self.voting.append(answer)

    def announce_drop(self, what: str, answer: Callable[[str, str], None]) -> None:
        self.announced.append(what)
        answer(*self.announcement)

    def command_lost(self, keys: "array[int]") -> None:
        self.commands_lost.append(list(keys))

    def barrier(
        self, who: Hashable, wait_s: float, answer: Callable[[bytes], None], *, begins: bool
    ) -> None:
        self.readers.append((who, wait_s, begins))
        answer(b"GID 7")

    def when_shown(self, gid: int, rest_s: float, answer: Callable[[bytes], None]) -> None:
        answer(b"LATE n%d after %d ms" % (gid, rest_s * 1000))

    def drop_waiter(self, who: Hashable) -> None:
        self.readers = [reader for reader in self.readers if reader[0] is not who]

    def end_session(self, pid: int) -> None:
        pass


class Session(HookConnection):
    """A connection that keeps its answers: tags, or SQLSTATEs."""

    def __init__(self, server: HookServer) -> None:
        super().__init__(server)
        self.answers: list[str] = []

    def done(self, tag: bytes) -> None:
        self.answers.append(tag.decode())

    def fail(self, sqlstate: str, message: str, detail: str = "", hint: str = "") -> None:
        self.answers.append(sqlstate)


class Hook:
    """A hook server, what it submitted, and what stands behind it."""

    def __init__(self, directory: Path, timeout_s: float = 1000.0) -> None:
        self.backend = Backend()
        self.submissions: list[bytes] = []
        self.accepts = True
        limits = TransactionLimits(64 << 20, 32 << 20, 1000, 10_000, 100, timeout_s)
        self.path = CommitPath(2, 5, cast("Any", self.backend), 0, limits)
        self.outbox = self.path.outbox
        self.server = HookServer(
            directory=directory,
            secret="s3",
            path=self.path,
            submit=self._submit,
            backend=self.backend,
            limits=limits,
        )

    def _submit(self, data: bytes, count: int) -> bool:
        self.submissions.append(data)
        return self.accepts

    def session(self, *queries: bytes) -> Session:
        session = Session(self.server)
        for query in queries:
            self.server.request(session, query)
        self.server.carry_out()
        return session

    def request(self, session: Session, query: bytes) -> None:
        """Have a session go on."""
        self.server.request(session, query)
        self.server.carry_out()

    def resubmit(self) -> None:
        """The proposer is another one."""
        self.outbox.resubmit()
        self.server.carry_out()

    def commit(self) -> None:
        """Have the log deliver the first writeset, which commits."""
        self.outbox.answer_commit(self.delivered(), 9, 8, None, monotonic())
        self.server.carry_out()

    def abort(self) -> None:
        """Have the log deliver the first writeset, which has lost."""
        self.outbox.answer_abort(self.delivered(), LOST)
        self.server.carry_out()

    def delivered(self) -> Transaction:
        """What the first sequence number was given to."""
        transaction = self.outbox.pop_delivered(1)
        assert transaction is not None
        return transaction

    def ordered(self) -> list[int]:
        """The xids of all submitted writesets, in order."""
        return [writeset.xid for writeset in self.writesets()]

    def writesets(self) -> list[Writeset]:
        """All submitted ones, in order."""
        entries = [entry for data in self.submissions for entry in iter_entries(data)]
        return [entry for entry in entries if isinstance(entry, Writeset)]


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    yield Hook(tmp_path)


def write(xid: int, body: bytes = WRITE) -> bytes:
    return b"W s3 77 %d 0\n%b" % (xid, body)


async def test_a_writeset_is_submitted_and_its_verdict_comes_on_its_connection(hook: Hook) -> None:
    session = hook.session(write(1001))
    assert hook.ordered() == [1001]
    hook.commit()
    assert session.answers == ["C 9 8 N"]
    assert hook.outbox.pop_delivered(1) is None


async def test_what_the_log_has_ruled_out_is_told_to_who_waits(hook: Hook) -> None:
    session = hook.session(write(1001))
    transaction = hook.delivered()
    hook.outbox.answer_superseded(transaction)
    hook.outbox.answer_superseded(transaction)
    hook.server.carry_out()
    assert session.answers == ["40001"]


async def test_what_has_lost_already_is_told_at_once_and_never_ordered(hook: Hook) -> None:
    hook.backend.conflict = LOST
    session = hook.session(write(1001))
    hook.resubmit()
    assert session.answers == ["40001"]
    assert hook.submissions == []


async def test_a_request_of_an_earlier_incarnation_is_never_ordered(hook: Hook) -> None:
    session = hook.session(b"W old 77 1001 0\n" + WRITE)
    hook.resubmit()
    assert session.answers == ["40001"]
    assert hook.submissions == []


async def test_what_an_earlier_incarnation_promised_is_not_known(hook: Hook) -> None:
    assert hook.session(b"P old 1001 9").answers == ["08006"]


async def test_an_interrupted_wait_goes_on_where_it_was(hook: Hook) -> None:
    first = hook.session(write(1001))
    second = hook.session(b"R s3 1001")
    hook.abort()
    assert (first.answers, second.answers) == ([], ["40001"])


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (Decision(DecisionKind.COMMIT), "08007"),
        (Decision(DecisionKind.ABORT, LOST), "40001"),
        (None, "40001"),
    ],
)
async def test_an_interrupted_session_that_comes_too_late_hears_what_became_of_it(
    hook: Hook, decision: Decision | None, answer: str
) -> None:
    """Unknown here means that it was never sent, unless it is in the middle of its commit."""
    if decision is not None:
        hook.path.outcomes.note_writeset(9, Writeset(2, 5, 1, 1, 1001, 0, b"", b"[]"), decision)
    assert hook.session(b"R s3 1001").answers == [answer]


async def test_a_session_that_was_told_to_commit_hears_no_abort_however_late_it_comes(
    hook: Hook,
) -> None:
    """It did not read its verdict, and the others have gone on meanwhile."""
    session, commit = hook.session(write(1001)), Decision(DecisionKind.COMMIT)
    [writeset] = hook.writesets()
    hook.path.deliver_writeset(9, writeset, key_array(writeset.keys), commit, monotonic())
    hook.server.carry_out()
    assert session.answers == ["C 9 0 N"]
    session.connection_lost(None)
    for n in range(200_000):
        other = Writeset(3, 1, n, n, n, 0, b"", b"")
        hook.path.outcomes.note_writeset(10 + n, other, commit)
    assert hook.path.outcomes.of("2.5.1001") == "unknown"
    assert hook.session(b"R s3 1001").answers == ["08007"]


async def test_a_transaction_is_never_ordered_under_two_numbers(hook: Hook) -> None:
    session = hook.session(write(1001), write(1001))
    assert session.answers == ["08007"]
    assert hook.ordered() == [1001]


async def test_much_that_is_under_way_is_submitted_again_in_pieces_and_in_order(
    hook: Hook,
) -> None:
    big = b'4:7\n[["public.t",[4],["I(1,%b)"]]]' % (b"x" * (700 << 10))
    hook.session(*[write(1000 + n, big) for n in range(5)])
    hook.submissions.clear()
    hook.resubmit()
    assert hook.ordered() == [1000, 1001, 1002, 1003, 1004]
    assert max(map(len, hook.submissions)) < 2 << 20


async def test_the_end_of_a_session_leaves_its_writeset_under_way(hook: Hook) -> None:
    session = hook.session(write(1001))
    session.connection_lost(None)
    hook.server.carry_out()
    transaction = hook.delivered()
    assert transaction.session is None
    hook.outbox.answer_abort(transaction, LOST)
    hook.server.carry_out()
    assert session.answers == []


# ---- transactions in pieces ----------------------------------------------------------------------

KEYS = b"B s3 77 1001 1\n4:7,11;5:9"
ROWS = b'B s3 77 1001 0\n[["public.t",[4],["I(1,abc)"]]]'
LAST = b'W s3 77 1001 2\n\n["public.t"]'


def pieces(hook: Hook) -> list[Piece]:
    """All submitted pieces, in order."""
    entries = [entry for data in hook.submissions for entry in iter_entries(data)]
    return [entry for entry in entries if isinstance(entry, Piece)]


def order(hook: Hook, *, taken: bool = True) -> Piece:
    """Have the log deliver the piece that was submitted last."""
    piece = pieces(hook)[-1]
    hook.outbox.pieces.deliver_piece(piece, monotonic(), counts=taken)
    hook.server.carry_out()
    return piece


async def test_each_piece_is_answered_when_it_is_ordered_and_the_writeset_names_them(
    hook: Hook,
) -> None:
    session = hook.session(KEYS)
    assert session.answers == []
    keys = order(hook)
    assert (keys.member, keys.incarnation, keys.serial, keys.number) == (2, 5, 1, 0)
    assert list(key_array(keys.data)) == [4, 2, 7, 11, 5, 1, 9]
    hook.request(session, ROWS)
    order(hook)
    hook.request(session, LAST)
    hook.resubmit()
    assert session.answers == ["OK", "OK"]
    transaction = hook.delivered()
    assert transaction.writeset.flags == FLAG_PIECES
    body = pieces_body(transaction.writeset.body)
    assert (body.serial, body.pieces, body.tables) == (1, 2, ("public.t",))
    hook.outbox.answer_commit(transaction, 9, 8, None, monotonic())
    hook.server.carry_out()
    assert session.answers[2:] == ["C 9 8 N"]
    assert len(hook.outbox.pieces.open) == 0


async def test_a_copy_of_a_piece_is_answered_once(hook: Hook) -> None:
    session = hook.session(KEYS)
    hook.resubmit()
    order(hook)
    order(hook, taken=False)
    assert session.answers == ["OK"]


async def test_a_row_larger_than_pieces_is_sent_in_parts(hook: Hook) -> None:
    session = hook.session(b"B s3 77 1001 0\n" + b"x" * 4500)
    flags = [order(hook).flags for _ in range(3)]
    assert flags == [PIECE_MORE, PIECE_MORE, 0]
    assert b"".join(piece.data for piece in pieces(hook)) == b"x" * 4500
    assert session.answers == ["OK"]


@pytest.mark.parametrize(
    ("piece", "answer"),
    [(b"B s3 77 1001 0\n" + b"x" * 12_000, "54000"), (KEYS, "40001")],
    ids=["too large", "lost already"],
)
async def test_a_transaction_that_is_refused_between_pieces_is_given_up(
    hook: Hook, piece: bytes, answer: str
) -> None:
    session = hook.session(ROWS)
    order(hook)
    hook.backend.conflict = LOST
    hook.request(session, piece)
    assert session.answers == ["OK", answer]
    assert order(hook).flags == PIECE_LAST
    assert len(hook.outbox.pieces.open) == 0


async def test_a_transaction_of_too_many_keys_is_given_up_however_few_its_bytes(hook: Hook) -> None:
    """All members hold the keys of a transaction in memory when they decide it."""
    keys = b"B s3 77 1001 1\n4:" + b",".join([b"7"] * 60)
    session = hook.session(keys)
    order(hook)
    hook.request(session, keys)
    assert session.answers == ["OK", "54000"]
    assert order(hook).flags == PIECE_LAST


async def test_a_session_that_ends_between_pieces_gives_its_transaction_up(hook: Hook) -> None:
    session = hook.session(ROWS)
    order(hook)
    hook.accepts = False
    session.connection_lost(None)
    hook.server.carry_out()
    hook.accepts = True
    hook.resubmit()  # until it is ordered: the log is kept as long
    assert len(hook.outbox.pieces.open) == 1
    assert order(hook).flags == PIECE_LAST
    assert len(hook.outbox.pieces.open) == 0


@pytest.mark.parametrize("request_", [write(1002), b"B s3 77 1002 0\n[]"], ids=["W", "B"])
async def test_a_session_that_goes_on_with_another_transaction_gives_the_former_up(
    hook: Hook, request_: bytes
) -> None:
    session = hook.session(ROWS)
    order(hook)
    hook.request(session, request_)
    assert [piece.serial for piece in pieces(hook) if piece.flags & PIECE_LAST] == [1]


async def test_the_end_of_the_server_gives_up_what_is_between_pieces(hook: Hook) -> None:
    hook.session(ROWS)
    order(hook)
    done = hook.session(ROWS.replace(b"1001", b"1002"))
    order(hook)
    hook.server.request(done, LAST.replace(b"1001", b"1002"))
    await hook.server.stop()
    assert [piece.serial for piece in pieces(hook) if piece.flags & PIECE_LAST] == [1]


@pytest.mark.parametrize(("flags", "ddl"), [(0, False), (1, True)])
async def test_what_is_too_large_to_be_ordered_whole_holds_ddl_only_if_it_does(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, flags: int, ddl: bool
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Session, "fail", lambda _, code, message, **hint: told.append(message))
    hook.session(b"W s3 77 1001 %d\n4:7\n%b" % (flags, b"x" * (33 << 20)))
    assert len(told) == 1
    assert ("DDL" in told[0]) == ddl


async def test_a_session_that_ends_after_its_writeset_gives_nothing_up(hook: Hook) -> None:
    session = hook.session(ROWS)
    order(hook)
    hook.request(session, LAST)
    session.connection_lost(None)
    hook.server.carry_out()
    assert pieces(hook)[-1].flags == 0


async def test_who_is_in_the_way_between_pieces_hears_40001_with_the_next(hook: Hook) -> None:
    session = hook.session(ROWS)
    order(hook)
    hook.outbox.pieces.refuse_pieces(77)
    hook.server.carry_out()
    hook.request(session, ROWS)
    assert session.answers == ["OK", "40001"]


async def test_who_is_in_the_way_while_a_piece_is_ordered_hears_40001_at_once(hook: Hook) -> None:
    """Before it is cancelled."""
    session = hook.session(ROWS)
    hook.outbox.pieces.refuse_pieces(77)
    hook.server.carry_out()
    assert session.answers == ["40001"]
    for piece in pieces(hook):
        hook.outbox.pieces.deliver_piece(piece, monotonic(), counts=True)
    assert pieces(hook)[-1].flags == PIECE_LAST
    assert session.answers == ["40001"]
    assert len(hook.outbox.pieces.open) == 0


async def test_what_the_log_has_ruled_out_ends_the_transaction(hook: Hook) -> None:
    session = hook.session(ROWS)
    order(hook, taken=False)
    assert session.answers == ["40001"]


async def test_a_writeset_without_its_pieces_is_never_ordered(hook: Hook) -> None:
    assert hook.session(LAST).answers == ["40001"]
    assert hook.ordered() == []


async def test_pieces_of_a_conflict_are_told_with_the_tables(hook: Hook) -> None:
    session = hook.session(KEYS)
    assert order(hook).flags == PIECE_KEYS
    hook.request(session, LAST)
    hook.abort()
    assert session.answers == ["OK", "40001"]


async def test_who_waits_while_a_large_one_is_decided_is_not_told_that_no_majority_is_there(
    tmp_path: Path,
) -> None:
    hook = Hook(tmp_path, timeout_s=0.0)
    hook.outbox.pause_deadlines(monotonic())
    await hook.server.start()  # it looks for who waits too long
    sessions = [hook.session(write(2001)), hook.session(ROWS)]
    await asyncio.sleep(0.6)
    assert [session.answers for session in sessions] == [[], []]
    hook.outbox.resume_deadlines(monotonic())
    await until(lambda: [session.answers for session in sessions] == [["08007"], ["25006"]])
    await hook.server.stop()


async def test_a_command_that_begins_is_let_go_on_by_the_replica(hook: Hook) -> None:
    session = hook.session(b"I s3 12\n-8,11", b"I s3 13\n")
    assert session.answers == ["OK", "OK"]
    assert hook.backend.asked == [(12, [-8, 11]), (13, [])]
    assert hook.ordered() == []


async def test_a_session_that_will_drop_an_index_hears_whether_all_members_know(hook: Hook) -> None:
    assert hook.session(b"D s3 77\n{}").answers == ["OK"]
    hook.backend.announcement = ("55006", "another one is under way")
    assert hook.session(b"D s3 77\n{}").answers == ["55006"]
    assert hook.backend.announced == ["{}", "{}"]
    assert hook.session(b"D s4 77\n{}").answers == ["08006"]
    assert hook.ordered() == []


async def test_a_command_that_has_lost_already_is_remembered_for_its_next_try(hook: Hook) -> None:
    hook.backend.conflict = LOST
    command = b'["",[0],["{\\"act\\":\\"restart\\",\\"object\\":\\"s\\"}"]]'
    assert hook.session(b"W s3 77 1 1\n4:7\n[%b]" % command).answers == ["40001"]
    assert hook.session(write(2)).answers == ["40001"]
    assert hook.backend.commands_lost == [[4, 1, 7]]


def _command(xid: int, text: str) -> bytes:
    fields = {"tag": "CREATE TABLE", "query": text, "message": "m", "role": "app"}
    body = msgspec.json.encode([["", [0], [msgspec.json.encode(fields).decode()]]])
    return b"W s3 77 %d 1\n4:7\n%b" % (xid, body)


async def test_a_command_that_another_member_cannot_execute_is_not_ordered(hook: Hook) -> None:
    hook.backend.veto = Veto("n3", "it lacks it")
    named = _command(1, 'CREATE TABLE t (x text COLLATE "sv_SE")')
    assert hook.session(named).answers == ["0A000"]
    assert hook.backend.polled == [['"sv_SE"']]
    assert hook.ordered() == []
    # and nothing keeps the transaction's number from being used again
    hook.backend.veto = None
    assert hook.session(named).answers == []
    assert hook.ordered() == [1]


_TOO_DEEP = "CREATE TABLE t (x text); COMMIT; SELECT " + "+".join(["1"] * 60_000)
_LONG = "CREATE TABLE t (x text);" + "INSERT INTO t VALUES ('some words');" * 2000


async def test_a_text_that_its_reader_does_not_survive_is_refused(hook: Hook) -> None:
    session = hook.session(_command(1, _TOO_DEEP))
    await until(lambda: session.answers)
    assert session.answers == ["0A000"]
    hook.request(session, _command(1, "CREATE TABLE t (x text)"))
    assert hook.ordered() == [1]


async def test_a_long_text_is_read_while_the_others_go_on(hook: Hook) -> None:
    hook.session(_command(1, _LONG))
    hook.session(write(2))
    assert hook.ordered() == [2]
    await until(lambda: len(hook.submissions) == 2)
    assert hook.ordered() == [2, 1]
    [[table, _, [record]]] = msgspec.json.decode(hook.writesets()[1].body)
    assert (table, msgspec.json.decode(record)["sql"]) == ("", "CREATE TABLE t (x text)")


async def test_who_was_interrupted_while_a_text_was_read_is_never_ordered(hook: Hook) -> None:
    session = hook.session(_command(1, _LONG))
    assert hook.session(b"R s3 1").answers == ["40001"]
    other = hook.session(_command(2, _TOO_DEEP))  # its turn comes behind
    await until(lambda: other.answers)
    assert session.answers == []
    assert hook.ordered() == []


async def test_nobody_is_asked_about_an_ordinary_command(hook: Hook) -> None:
    hook.backend.veto = Veto("n3", "it lacks it")
    hook.session(_command(1, "CREATE TABLE t (x text)"))
    assert hook.ordered() == [1]
    assert hook.backend.polled == []


@pytest.mark.parametrize("veto", [None, Veto("n3", "it lacks it")])
async def test_who_was_interrupted_during_the_vote_is_never_ordered(
    hook: Hook, veto: Veto | None
) -> None:
    hook.backend.waits = True
    session = hook.session(_command(1, 'CREATE TABLE t (x text COLLATE "sv_SE")'))
    assert hook.session(b"R s3 1").answers == ["40001"]
    hook.backend.voting[0](veto)
    assert session.answers == []
    assert hook.backend.waiting == []
    assert hook.ordered() == []


@pytest.mark.parametrize("query", [b"I s3 8589934593 \n", _command(2**33 + 1, "CREATE TABLE t ()")])
async def test_who_waits_before_the_order_is_refused_if_he_is_in_the_way(
    hook: Hook, query: bytes
) -> None:
    hook.backend.waits = True
    session = hook.session(query)
    assert not hook.server.refuse(2)
    assert hook.server.refuse(1) and not hook.server.refuse(1)
    assert session.answers == ["40001"]
    hook.backend.waiting[0]()
    hook.server.carry_out()
    assert session.answers == ["40001"]
    assert hook.ordered() == []


async def test_a_command_that_began_is_not_refused_any_more(hook: Hook) -> None:
    session = hook.session(b"I s3 7 \n")
    assert not hook.server.refuse(7)
    assert session.answers == ["OK"]


async def test_a_writeset_is_ordered_when_the_replica_says_so(hook: Hook) -> None:
    hook.backend.waits = True
    session = hook.session(write(1001), write(1001))
    assert session.answers == ["08007"]
    hook.resubmit()
    assert hook.ordered() == []
    hook.backend.waiting[0]()
    hook.server.carry_out()
    assert hook.ordered() == [1001]


async def test_what_has_lost_while_it_waited_is_never_ordered(hook: Hook) -> None:
    hook.backend.waits = True
    session = hook.session(write(1001))
    hook.backend.conflict = LOST
    hook.backend.waiting[0]()
    hook.server.carry_out()
    hook.resubmit()
    assert session.answers == ["40001"]
    assert hook.ordered() == []


async def test_who_was_interrupted_while_it_waited_is_never_ordered(hook: Hook) -> None:
    hook.backend.waits = True
    hook.session(write(1001))
    assert hook.session(b"R s3 1001").answers == ["40001"]
    hook.backend.waiting[0]()
    hook.server.carry_out()
    hook.resubmit()
    assert hook.ordered() == []


async def test_a_session_that_ends_while_it_waited_is_never_ordered(hook: Hook) -> None:
    hook.backend.waits = True
    hook.session(write(1001)).connection_lost(None)
    hook.backend.waiting[0]()
    hook.server.carry_out()
    hook.resubmit()
    assert hook.ordered() == []


async def test_a_reader_asks_on_his_connection_and_is_forgotten_with_it(hook: Hook) -> None:
    session = hook.session(b"S s3 500", b"G s3 20")
    assert session.answers == ["GID 7", "GID 7"]
    assert hook.backend.readers == [(session, 0.5, True), (session, 0.02, False)]
    hook.server.closed(session)
    assert hook.backend.readers == []


@pytest.mark.parametrize("turns", range(5))
async def test_who_connects_while_the_socket_is_closed_is_not_left_waiting(
    hook: Hook, tmp_path: Path, turns: int
) -> None:
    await hook.server.start()
    with socket.socket(socket.AF_UNIX) as session:
        session.connect(str(tmp_path / HOOK_SOCKET))
        session.setblocking(False)
        for _ in range(turns):  # of the loop, which accepts it and makes a connection of it
            await asyncio.sleep(0)
        await hook.server.stop()
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):  # it was not accepted at all
                assert await asyncio.get_running_loop().sock_recv(session, 1) == b""
