"""Sequences at a subscriber: they stand at or beyond every number that a row has."""

from collections.abc import Iterable

from psycopg import sql

from pgherd_sidecar.subscribing.state.connections import ask_subscriber, require_schema
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import HerdSequence
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session


class Numbering:
    """Moves sequences forward, never back.

    Args:
        session: at the subscriber.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def align(self, sequence: HerdSequence, table: SourceTable) -> None:
        """Bring a sequence, which is made if it is missing, to where the rows that are shown are.

        Args:
            sequence: as the herd has it.
            table: whose rows have its numbers.

        Raises:
            StoppedError: something else has its name.
            psycopg.Error: the subscriber says no.
        """
        found = await ask_subscriber(self._session, "sequence_kind", seq=sequence.name)
        if not found:
            await self._make(sequence)
        elif found[0]["kind"] != "S":
            raise StoppedError(
                f"{sequence.name} of the subscriber is no sequence: drop or rename it there, and"
                " repeat `pgherd subscribe`"
            )
        place = sql.Identifier(table.schema, table.relation)
        furthest = await self._furthest(place, sequence.column, sequence.step)
        await self.set(sequence, sequence.further(furthest, sequence.last))

    async def _furthest(self, place: sql.Identifier, column: str, step: int) -> int | None:
        """The number in a column to which a sequence comes last; None: there is none."""
        cursor = await self._session.execute(
            sql.SQL("SELECT {}(t.{}) AS value FROM ONLY {} t").format(
                sql.SQL("max" if step > 0 else "min"), sql.Identifier(column), place
            )
        )
        row = await cursor.fetchone()
        assert row is not None
        value: int | None = row["value"]
        return value

    async def pass_rows(self, tables: Iterable[str]) -> None:
        """Have the sequences that columns of tables own go on behind the numbers of the rows.

        A herd follows no sequences, and a set need not have them. Nobody else writes to the tables.

        Args:
            tables: their names.

        Raises:
            psycopg.Error: the subscriber says no.
        """
        owned = await ask_subscriber(self._session, "owned_sequences", tables=list(tables))
        for one in owned:
            place, step = sql.Identifier(one["schema"], one["relation"]), one["step"]
            furthest = await self._furthest(place, one["column"], step)
            if furthest is None:
                continue
            given = await self._given(sql.Identifier(one["place"], one["name"]))
            is_behind = (furthest - given) * step > 0
            # Another member of a herd may be behind, though this one is not.
            if is_behind or one["of_herd"]:
                await self._move(one["seq"], furthest if is_behind else given)

    async def _given(self, sequence: sql.Identifier) -> int:
        """The number before the next one: that of the last call, or where there was none yet."""
        cursor = await self._session.execute(
            sql.SQL(
                "SELECT s.last_value AS last, s.is_called AS called, q.seqincrement AS step"
                " FROM {} s JOIN pg_sequence q ON q.seqrelid = s.tableoid"
            ).format(sequence)
        )
        row = await cursor.fetchone()
        assert row is not None
        last: int = row["last"]
        return last if row["called"] else last - row["step"]

    async def _move(self, name: str, value: int) -> None:
        await ask_subscriber(self._session, "move_sequence", seq=name, value=value)

    async def _make(self, sequence: HerdSequence) -> None:
        await require_schema(self._session, sequence.schema)
        await self._session.execute(
            sql.SQL("CREATE SEQUENCE {} AS {} INCREMENT {} MINVALUE {} MAXVALUE {}").format(
                sql.Identifier(sequence.schema, sequence.relation), sql.SQL(sequence.type),
                sequence.step, sequence.least, sequence.greatest,
            )
        )  # fmt: skip

    async def set(self, sequence: HerdSequence, value: int | None) -> None:
        """Have a sequence go on behind a number: at once, a rollback does not undo it.

        A number of the subscriber's own may be further, also where it was never called.
        """
        if value is None:
            return
        given = await self._given(sql.Identifier(sequence.schema, sequence.relation))
        if (value - given) * sequence.step > 0:
            await self._move(sequence.name, value)
