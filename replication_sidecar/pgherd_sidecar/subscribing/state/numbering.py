"""Sequences at a subscriber: they stand at or beyond every number that a row has."""

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
        cursor = await self._session.execute(
            sql.SQL("SELECT {}(t.{}) AS value FROM ONLY {} t").format(
                sql.SQL("max" if sequence.step > 0 else "min"),
                sql.Identifier(sequence.column),
                sql.Identifier(table.schema, table.relation),
            )
        )
        row = await cursor.fetchone()
        assert row is not None
        await self.set(sequence, sequence.further(row["value"], sequence.last))

    async def _make(self, sequence: HerdSequence) -> None:
        await require_schema(self._session, sequence.schema)
        await self._session.execute(
            sql.SQL("CREATE SEQUENCE {} AS {} INCREMENT {} MINVALUE {} MAXVALUE {}").format(
                sql.Identifier(sequence.schema, sequence.relation), sql.SQL(sequence.type),
                sequence.step, sequence.least, sequence.greatest,
            )
        )  # fmt: skip

    async def set(self, sequence: HerdSequence, value: int | None) -> None:
        """Have a sequence go on behind a number: at once, a rollback does not undo it."""
        if value is not None:
            values = {"seq": sequence.name, "value": value, "step": sequence.step}
            await ask_subscriber(self._session, "set_sequence", **values)
