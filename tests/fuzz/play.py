"""Plays a case to the herd and to the plain server, and looks after each transaction.

Sessions live in threads of their own, so that one may wait for another. While no session is in a
transaction, whatever was committed is compared: members with each other, and with the plain
server, to which the same transactions were said in the same order. Where the herd refused a
statement by the table of ``allowed``, the plain server fails there, too. Transactions that overlap
have no counterpart: from the first one on only members are compared with each other.
"""

import contextlib
import functools
import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psycopg

from fuzz import compare
from fuzz.allowed import UNKNOWN, is_refusal, is_repeated
from fuzz.case import APART, EVERYBODY, TOGETHER, Case, Step, ends, units
from fuzz.servers import MEMBERS, PLAIN, Servers, StuckError

OK = "ok"
_REPEATS = 6
_PATIENCE_S = 25.0
_BLOCKED_S = 1.2
_LOOKS = 4
_FAIL = b"DO $$ BEGIN RAISE 'refused by the herd'; END $$"
_POINT = "fuzz_guard"


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that must not be.

    Attributes:
        kind: ``trouble``, ``members differ``, ``plain differs``, ``outcome``, ``orphan``,
            ``index`` or ``stuck``.
        text: what was seen.
        step: after which step.
    """

    kind: str
    text: str
    step: int


@dataclass
class Tally:
    """What was done."""

    cases: int = 0
    transactions: int = 0
    statements: int = 0
    failed: int = 0
    refused: int = 0
    repeated: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {self.transactions} transactions, {self.statements} statements; "
            f"{self.failed} failed as on a plain server, {self.refused} refused, "
            f"{self.repeated} transactions repeated"
        )


class FoundError(Exception):
    """Carries a finding to the end of the case."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


Outcomes = list[tuple[str, str]]
"""By statement: ``ok`` and the command's tag, or the SQLSTATE and the message."""


class Session(threading.Thread):
    """One session on one server, which does one unit after the other."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.inside = False
        self.tally = Tally()
        self._work: queue.Queue[tuple[tuple[bytes, ...], bool, queue.Queue[Outcomes]] | None] = (
            queue.Queue()
        )
        self.pending: list[queue.Queue[Outcomes]] = []
        self.start()

    def run(self) -> None:
        """Do what is asked until told to end."""
        while (work := self._work.get()) is not None:
            statements, guarded, answer = work
            answer.put(self._execute(statements, guarded))

    def ask(self, statements: tuple[bytes, ...], *, guarded: bool) -> "queue.Queue[Outcomes]":
        """Have statements executed; the answer comes by the queue."""
        answer: queue.Queue[Outcomes] = queue.Queue()
        self.pending.append(answer)
        self._work.put((statements, guarded, answer))
        return answer

    def wait(self, answer: "queue.Queue[Outcomes]", patience_s: float) -> Outcomes | None:
        """The answer; None when there is none in time."""
        try:
            found = answer.get(timeout=patience_s)
        except queue.Empty:
            return None
        self.pending.remove(answer)
        return found

    def finish(self, patience_s: float) -> bool:
        """Wait for all that was asked; whether it has ended."""
        return all(self.wait(answer, patience_s) is not None for answer in list(self.pending))

    def end(self) -> None:
        """End the session, whatever it does."""
        self._work.put(None)
        with contextlib.suppress(psycopg.Error):
            self.connection.cancel_safe(timeout=2) if self.is_alive() and self.pending else None
        self.join(timeout=15)
        with contextlib.suppress(psycopg.Error):
            self.connection.close()

    def _execute(self, statements: tuple[bytes, ...], guarded: bool) -> Outcomes:
        outcomes: Outcomes = []
        for statement in statements:
            inside = self._in_transaction()
            guard = guarded and inside and not ends(statement.decode())
            if guard:
                self._say(f"SAVEPOINT {_POINT}".encode())
            outcome = self._say(statement)
            if guard:
                back = "RELEASE" if outcome[0] == OK else "ROLLBACK TO"
                self._say(f"{back} {_POINT}".encode())
            outcomes.append(outcome)
        self.inside = self._in_transaction()
        return outcomes

    def _in_transaction(self) -> bool:
        return self.connection.info.transaction_status in (
            psycopg.pq.TransactionStatus.INTRANS,
            psycopg.pq.TransactionStatus.INERROR,
        )

    def _say(self, statement: bytes) -> tuple[str, str]:
        try:
            cursor = self.connection.execute(statement)
        except psycopg.Error as error:
            return error.sqlstate or "08006", str(error)
        except (UnicodeError, ValueError) as error:  # a reply in a client_encoding of the case
            return OK, type(error).__name__
        return OK, cursor.statusmessage or ""


class Game:
    """One case on the servers, in a schema of its own."""

    def __init__(self, servers: Servers, case: Case, schema: str, tally: Tally) -> None:
        self._servers = servers
        self._case = case
        self._schema = schema
        self._tally = tally
        self._sessions: dict[tuple[str, str, str, str], Session] = {}
        self._plain = True
        self._overlaps = False
        self._looks = [(name, servers.admin(name)) for name in (*MEMBERS, PLAIN)]
        for _, connection in self._looks:
            compare.prepare(connection)

    def play(self) -> Finding | None:
        """Play all steps; return what must not be, if it was seen."""
        number = 0
        try:
            for step in self._case.steps:
                number += 1
                self._step(step)
            self._together()
            self._look(thorough=True)
        except FoundError as found:
            return Finding(found.kind, str(found), number)
        except StuckError as error:
            told = self._trouble()
            return Finding("trouble" if told else "stuck", told or str(error), number)
        except psycopg.Error as error:  # of a look
            told = self._trouble()
            return Finding("trouble" if told else "stuck", told or str(error), number)
        finally:
            for session in self._sessions.values():
                session.end()
            for _, connection in self._looks:
                connection.close()
        return None

    # ---- steps -------------------------------------------------------------------------------

    def _step(self, step: Step) -> None:
        if step.act == APART:
            self._plain = False
            return
        if step.act == TOGETHER:
            self._together()
            self._servers.settle()
            return
        for member in MEMBERS if step.member == EVERYBODY else (step.member,):
            self._say(step, member)

    def _say(self, step: Step, member: str) -> None:
        session = self._session(step, member)
        alone = not step.at_once and not self._busy(session)
        for unit in units(step.statements, inside=session.inside):
            texts = tuple(one.replace("@schema@", self._schema).encode() for one in unit)
            if not alone or session.inside or (len(unit) > 1 and not ends(unit[-1])):
                self._overlap(session, texts, step)
            elif step.database:
                session.wait(session.ask(texts, guarded=False), _PATIENCE_S)
            else:
                self._alone(session, texts, step)
        if not step.database and not self._busy(None):
            self._look()

    def _session(self, step: Step, member: str) -> Session:
        key = (member, step.session, step.role, step.database)
        found = self._sessions.get(key)
        if found is None or found.connection.closed:
            connection = self._servers.user(
                member, self._schema, role=step.role, database=step.database
            )
            found = self._sessions[key] = Session(connection)
        return found

    def _busy(self, but: Session | None) -> bool:
        """Whether a session is in a transaction, or does something."""
        return any(
            one is not but and (one.inside or one.pending) and not one.connection.closed
            for one in self._sessions.values()
        )

    def _overlap(self, session: Session, texts: tuple[bytes, ...], step: Step) -> None:
        """One of several transactions at once: nobody knows what becomes of it."""
        self._overlaps, self._plain = True, False
        self._tally.transactions += 1
        self._tally.statements += len(texts)
        answer = session.ask(texts, guarded=step.guarded)
        if not step.at_once:
            session.wait(answer, _BLOCKED_S if self._busy(session) else _PATIENCE_S)

    def _together(self) -> None:
        """Wait for all sessions; open transactions stay open."""
        for session in self._sessions.values():
            if not session.finish(_PATIENCE_S):
                raise FoundError("stuck", "a statement does not end")

    def _alone(self, session: Session, texts: tuple[bytes, ...], step: Step) -> None:
        """A transaction with no other beside it, and the same on the plain server."""
        self._tally.transactions += 1
        outcomes = self._until_settled(session, texts, step)
        if outcomes is None:
            return
        self._count(outcomes, texts)
        if self._plain and step.member != EVERYBODY:
            self._compare_outcomes(outcomes, texts, step)

    def _until_settled(
        self, session: Session, texts: tuple[bytes, ...], step: Step
    ) -> Outcomes | None:
        """Repeat a transaction that has met another one; None when nobody knows its outcome."""
        outcomes: Outcomes | None = None
        for attempt in range(_REPEATS):
            outcomes = session.wait(session.ask(texts, guarded=step.guarded), _PATIENCE_S)
            if outcomes is None:
                raise FoundError("stuck", f"no answer in {_PATIENCE_S:g} s: {texts[-1].decode()}")
            if not any(is_repeated(*one) for one in outcomes):
                return outcomes
            if session.connection.closed or attempt == _REPEATS - 1:
                break
            if any(code in UNKNOWN for code, _ in outcomes):
                break
            self._tally.repeated += 1
            session.wait(session.ask((b"ROLLBACK",), guarded=False), _PATIENCE_S)
            time.sleep(0.05 * 2**attempt)
            self._servers.settle()
        self._uncertain(session, outcomes or [])
        return None

    def _uncertain(self, session: Session, outcomes: Outcomes) -> None:
        """The herd does not say what has become of it, or refuses to the end."""
        said = next((one for one in outcomes if is_repeated(*one)), ("", ""))
        told = self._trouble()
        if told:
            raise FoundError("trouble", told)
        if not session.connection.closed and said[0] == "40001":
            raise FoundError("outcome", f"fails {_REPEATS} times with nobody beside it: {said[1]}")
        self._plain = False

    def _count(self, outcomes: Outcomes, texts: tuple[bytes, ...]) -> None:
        self._tally.statements += len(texts)
        for (code, message), text in zip(outcomes, texts, strict=True):
            if is_refusal(code, text.decode()):
                self._tally.refused += 1
                self._tally.refusals[message.partition("\n")[0]] += 1
            elif code != OK:
                self._tally.failed += 1

    # ---- the plain server --------------------------------------------------------------------

    def _compare_outcomes(self, found: Outcomes, texts: tuple[bytes, ...], step: Step) -> None:
        key = (PLAIN, f"{step.member}{step.session}", step.role, "")
        session = self._sessions.get(key)
        if session is None:
            connection = self._servers.user(PLAIN, self._schema, role=step.role)
            session = self._sessions[key] = Session(connection)
        said = tuple(
            self._same_fate(text, code) for (code, _), text in zip(found, texts, strict=True)
        )
        wanted = session.wait(session.ask(said, guarded=step.guarded), _PATIENCE_S)
        if wanted is None:
            self._plain = False
            return
        for (code, message), (other, text), statement in zip(found, wanted, texts, strict=True):
            if is_refusal(code, statement.decode()):
                continue
            if (code == OK) != (other == OK) or code[:2] != other[:2]:
                raise FoundError(
                    "outcome",
                    f"{statement.decode()}\n  the herd: {code} {message}\n"
                    f"  a plain server: {other} {text}",
                )
            if code == OK and message != text:
                raise FoundError(
                    "outcome", f"{statement.decode()}\n  the herd: {message}\n  plain: {text}"
                )

    @staticmethod
    def _same_fate(text: bytes, code: str) -> bytes:
        if not is_refusal(code, text.decode()):
            return text
        return b"ROLLBACK" if ends(text.decode()) else _FAIL

    # ---- looks -------------------------------------------------------------------------------

    def _look(self, *, thorough: bool = False) -> None:
        """Compare all servers."""
        schema = self._schema
        for look in range(_LOOKS):
            self._servers.settle([connection for _, connection in self._looks[:3]])
            told = self._trouble()
            if told:
                raise FoundError("trouble", told)
            local = compare.local_tables(self._looks[0][1], schema)
            read = functools.partial(compare.state, schema=schema, local=local)
            told = compare.same_everywhere(self._looks[:3], read)
            if not told:
                break
            time.sleep(0.2 * 4**look)  # a transaction whose client is gone may still be on its way
        else:
            raise FoundError("members differ", told)
        if self._plain:
            told = compare.same_everywhere(
                [self._looks[0], self._looks[3]],
                lambda c: compare.state(c, schema, local, portable=True),
            )
            if told:
                raise FoundError("plain differs", told)
        if self._overlaps or thorough:
            for name, connection in self._looks[:3]:
                told = compare.orphans(connection, schema, local)
                if told:
                    raise FoundError("orphan", f"{name}: {told}")
        for name, connection in self._looks[:3] if thorough else ():
            told = compare.damaged_indexes(connection, schema)
            if told:
                raise FoundError("index", f"{name}: {told}")
            told = compare.generated_otherwise(connection)
            if told:
                raise FoundError("generated", f"{name}: {told}")

    def _trouble(self) -> str:
        return "\n".join(str(one) for one in self._servers.trouble())


def play(servers: Servers, case: Case, tally: Tally) -> Finding | None:
    """Play a case in a fresh schema; afterwards the herd is well again.

    A schema that members may have otherwise is left where it is.
    """
    servers.trouble()
    schema = servers.new_schema()
    tally.cases += 1
    found = Game(servers, case, schema, tally).play()
    if found is None:
        try:
            servers.drop_schema(schema)
        except (psycopg.Error, StuckError) as error:
            found = Finding("stuck", f"the schema can't be dropped: {error}", len(case.steps))
        told = servers.trouble()
        if told:
            found = Finding("trouble", "\n".join(map(str, told)), len(case.steps))
    if found is not None:
        servers.drop_plain(schema)
        mend(servers, found)
    return found


def mend(servers: Servers, found: Finding) -> None:
    """Have members that are the same again: wait for rebuilds, or take another herd."""
    if found.kind == "members differ":
        servers.copy_first()
    elif found.kind in ("trouble", "stuck"):
        servers.recover()
