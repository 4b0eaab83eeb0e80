"""A workload that remembers what every client was told, and the checks that this was the truth.

Clients on all nodes move money between accounts. Each transaction writes one row with an id of
its own into ``ledger``, so afterwards the ledger says what really committed: all that was
acknowledged, nothing that was refused, and of what nobody could tell the client either.

Used by the tests of restarts, visibility and victims. Keeps no state but in the ``Ledger``.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from patience import WaitRanOutError
from psycopg import sql
from workloads.acknowledged import Acknowledged

from .localherd import LocalHerd, Node, put, query

INITIAL = 1000
_THINK_S = 0.02  # between transactions: the machine also has to start again what tests kill
_ABORTED = {"40001", "40P01", "25006"}
_UNKNOWN = {"08007"}
_ENDED = {"57P01", "57P02", "57P03", "57014", None}  # or cancelled: it was in the way


def create_everywhere(herd: LocalHerd, ddl: str) -> None:
    """Create tables on all nodes, and return when all have them."""
    put(herd, herd.nodes()[0].app_dsn, ddl)


@dataclass
class Ledger:
    """Accounts and ledger in a schema of their own, and what the clients know.

    Attributes:
        told_committed, told_aborted, unknown: ids of transactions, by what the client heard.
        codes: what went wrong how often, by SQLSTATE.
        surprises: errors that no client should ever see, as (SQLSTATE, message).
    """

    herd: LocalHerd
    schema: str
    accounts: int = 200
    told_committed: set[int] = field(default_factory=set)
    told_aborted: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    codes: Counter[str] = field(default_factory=Counter)
    surprises: list[tuple[str | None, str]] = field(default_factory=list)
    _next: int = 0
    _acknowledged: Acknowledged = field(default_factory=Acknowledged)

    def create(self) -> None:
        """Make the tables."""
        name = self.schema
        create_everywhere(
            self.herd,
            f"CREATE SCHEMA {name};"
            f"CREATE TABLE {name}.account (id int PRIMARY KEY, balance int NOT NULL);"
            f"CREATE TABLE {name}.ledger (id int PRIMARY KEY, debit int NOT NULL,"
            f" credit int NOT NULL, amount int NOT NULL, node text NOT NULL, xid xid8 NOT NULL);"
            f"INSERT INTO {name}.account SELECT g, {INITIAL}"
            f" FROM generate_series(1, {self.accounts}) g",
        )

    def drop(self) -> None:
        """Remove the tables."""
        query(self.herd.nodes()[0].dsn, f"DROP SCHEMA {self.schema} CASCADE")

    @contextlib.asynccontextmanager
    async def load(self, clients: int, *, on: Iterable[str] = ()) -> AsyncIterator[None]:
        """Run ``clients`` on each node for as long as the block lasts; they ride out failures.

        Args:
            clients: how many.
            on: the nodes; by default all that there are.
        """
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for node in self.herd.nodes():
                if on and node.name not in on:
                    continue
                for _ in range(clients):
                    group.create_task(self._client(node, stop))
            try:
                yield
            finally:
                stop.set()

    async def commits(self, more: int, *, on: Iterable[str] = ()) -> None:
        """Wait until ``more`` transactions have been acknowledged from now on, on each of these."""
        try:
            await self._acknowledged.more(more, on=on)
        except WaitRanOutError as error:
            states = {member["name"]: member for member in self.herd.members()}
            raise WaitRanOutError(f"{error}, errors {dict(self.codes)}, members {states}") from None

    async def _client(self, node: Node, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                connection = await psycopg.AsyncConnection.connect(node.app_dsn, autocommit=True)
            except psycopg.OperationalError:
                await asyncio.sleep(0.05)
                continue
            async with connection:
                with contextlib.suppress(psycopg.OperationalError):
                    while not stop.is_set() and not connection.closed:
                        await self._transfer(connection, node.name)
                        await asyncio.sleep(_THINK_S)

    async def _transfer(self, connection: psycopg.AsyncConnection[Any], node: str) -> None:
        self._next += 1
        number = self._next
        debit, credit = random.sample(range(1, self.accounts + 1), 2)
        amount = random.randint(1, 9)
        committing = False
        try:
            await connection.execute("BEGIN")
            move = sql.SQL("UPDATE {}.account SET balance = balance + %s WHERE id = %s").format(
                sql.Identifier(self.schema)
            )
            await connection.execute(move, (-amount, debit))
            await connection.execute(move, (amount, credit))
            await connection.execute(
                sql.SQL(
                    "INSERT INTO {}.ledger VALUES (%s, %s, %s, %s, %s, pg_current_xact_id())"
                ).format(sql.Identifier(self.schema)),
                (number, debit, credit, amount, node),
            )
            committing = True
            await connection.execute("COMMIT")
        except psycopg.Error as error:
            await self._heard(connection, number, error, committing)
        else:
            self.told_committed.add(number)
            self._acknowledged.note(node)

    async def _heard(
        self,
        connection: psycopg.AsyncConnection[Any],
        number: int,
        error: psycopg.Error,
        committing: bool,
    ) -> None:
        code = error.sqlstate
        self.codes[str(code)] += 1
        if code in _ABORTED:
            self.told_aborted.add(number)
        elif code in _UNKNOWN or code in _ENDED:
            (self.unknown if committing else self.told_aborted).add(number)
        else:
            self.surprises.append((code, str(error)))
            if committing:
                self.unknown.add(number)
        if not connection.closed:
            await connection.execute("ROLLBACK")
        if code == "25006":
            await asyncio.sleep(0.05)

    # ---- checks ------------------------------------------------------------------------------

    def rows(self, dsn: str) -> dict[int, tuple[int, int, int]]:
        """The ledger of one node."""
        found = query(dsn, f"SELECT id, debit, credit, amount FROM {self.schema}.ledger")
        return {number: (debit, credit, amount) for number, debit, credit, amount in found}

    def check(self) -> None:
        """Everything that was promised to the clients holds on all nodes, and they are equal."""
        assert self.surprises == []
        self.herd.must("verify")
        ledgers = [self.rows(node.dsn) for node in self.herd.nodes()]
        for ledger, node in zip(ledgers, self.herd.nodes(), strict=True):
            lost = self.told_committed - ledger.keys()
            assert not lost, f"{node.name} lost {sorted(lost)[:10]} of {len(lost)}"
            undead = self.told_aborted & ledger.keys()
            assert not undead, f"{node.name} has {sorted(undead)[:10]} of {len(undead)}"
            unasked = ledger.keys() - self.told_committed - self.unknown
            assert not unasked, f"{node.name} made up {sorted(unasked)[:10]}"
            self._check_balances(node.dsn, ledger)
        assert all(ledger == ledgers[0] for ledger in ledgers)

    def _check_balances(self, dsn: str, ledger: dict[int, tuple[int, int, int]]) -> None:
        expected = dict.fromkeys(range(1, self.accounts + 1), INITIAL)
        for debit, credit, amount in ledger.values():
            expected[debit] -= amount
            expected[credit] += amount
        assert dict(query(dsn, f"SELECT id, balance FROM {self.schema}.account")) == expected


def new_ledger(herd: LocalHerd, accounts: int = 200) -> Ledger:
    """What clients were told, in a schema of its own."""
    ledger = Ledger(herd, f"l_{random.getrandbits(40):x}", accounts)
    ledger.create()
    return ledger
