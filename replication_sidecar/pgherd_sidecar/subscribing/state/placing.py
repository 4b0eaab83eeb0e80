"""Tables at a subscriber: copies beside what is shown, and how they come into their places.

A guard is a trigger that refuses what no feeder writes. Its argument is the subscription that has
made it: no other one drops it. An ordinary role can do all of it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from psycopg import sql
from psycopg.types.json import Jsonb

from pgherd_sidecar.subscribing.state.connections import (
    ask_subscriber,
    require_schema,
    subscriber_query,
)
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, HerdTable, Subscription, TableSelection
from pgherd_sidecar.subscribing.state.holdings import (
    SCHEMA,
    Holdings,
    ShownTable,
    definition,
    has_columns,
)
from pgherd_sidecar.subscribing.state.numbering import Numbering
from pgherd_sidecar.tables.copying import column_names
from pgherd_sidecar.tables.model import KeyEquality, SourceTable
from pgherd_sidecar.tables.rowsql import exchange
from pgherd_sidecar.tables.sessions import Session

_Columns = Mapping[str, Mapping[str, Any]]
_GUARD, _ROW_GUARD = "follows_herd", "follows_herd_rows"
"""Names that begin with `pgherd_` are a herd's own."""


class Placing:
    """Makes, moves and guards the tables of one subscription, within the caller's transactions.

    Args:
        session: at the subscriber.
        subscription: what was ordered.
        held: which tables there are.
    """

    def __init__(self, session: Session, subscription: Subscription, held: Holdings) -> None:
        self._session = session
        self._subscription = subscription
        self._held = held

    @property
    def _mine(self) -> dict[str, Any]:
        return {"name": self._subscription.name}

    # ---- checks ----------------------------------------------------------------------------

    async def require_free(self, tables: Collection[str]) -> None:
        """Check that no other subscription writes these tables here.

        Raises:
            StoppedError: one does.
        """
        for row in await self._rows("others", **self._mine, tables=list(tables), fenced=FENCED):
            raise StoppedError(
                f"table {row['tab']} follows subscription {row['subscription']} in that database:"
                f" unsubscribe one of the two, or DROP SCHEMA {SCHEMA} CASCADE there if no herd has"
                " that one any more"
            )

    async def require_plain(self, tables: Iterable[str]) -> None:
        """Check that what is there under these names can hold the rows.

        Raises:
            StoppedError: a table has partitions or children, or is unlogged or none.
        """
        for row in await self._rows("not_plain", tables=list(tables)):
            raise StoppedError(
                f"{row['tab']} of the subscriber is {row['kind']}, and rows are written to plain"
                f" tables only: {row['remedy']} there, and repeat `pgherd subscribe`"
            )

    async def dependent(self, tables: Iterable[SourceTable]) -> frozenset[str]:
        """Those of which a row that is deleted and comes again would lose something.

        It has columns of the subscriber's own, or others refer to it. Those are left out whose keys
        may be equal though their texts differ: by text one can't tell that such a row comes again.
        """
        asked = [
            {"tab": one.name, "known": [column.name for column in one.columns],
             "key": one.key_names}
            for one in tables
            if one.key and one.schema != SCHEMA
            and all(equality == KeyEquality() for _, equality in one.key_columns)
        ]  # fmt: skip
        found = await self._rows("dependent", tables=Jsonb(asked))
        return frozenset(row["tab"] for row in found)

    async def has_place(self, plain: SourceTable) -> bool:
        """Is there a table of this name with these columns?"""
        here = await self._columns(plain.name)
        return bool(here) and has_columns(here, plain.columns)

    async def may_be_copy(self, plain: SourceTable) -> bool:
        """Is there a table that is none of ours, and may have the rows? It has some."""
        if plain.name in self._held.shown | self._held.old or not await self.has_place(plain):
            return False
        place = sql.Identifier(plain.schema, plain.relation)
        cursor = await self._session.execute(sql.SQL("SELECT FROM ONLY {} LIMIT 1").format(place))
        return cursor.rowcount > 0

    async def _columns(self, tab: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in await self._rows("columns", tab=tab)}

    # ---- copies ----------------------------------------------------------------------------

    async def stage(self, found: HerdTable) -> SourceTable:
        """Make an empty table beside what is shown."""
        relation = self._staging(found.table.name)
        await self._drop_copy(found.table.name)
        await self._session.execute(
            sql.SQL("CREATE TABLE {} ({})").format(
                sql.Identifier(SCHEMA, relation), _ready(found.declared)
            )
        )
        return msgspec.structs.replace(found.table, schema=SCHEMA, relation=relation)

    async def note_staged(self, table: SourceTable, gid: int, found: HerdTable) -> None:
        """Remember a copy, in the transaction that has completed it.

        Args:
            table: where it is.
            gid: of its rows.
            found: what it is a copy of.
        """
        await self._session.execute(
            subscriber_query("stage"),
            self._mine | {
                "tab": table.name, "generation": self._subscription.generation, "gid": gid,
                "definition": definition(table, found.selection, found.read_types),
                "parts": found.parts,
            },
        )  # fmt: skip

    async def unstage(self, name: str) -> None:
        """Give a copy up that can't be used."""
        if name not in self._held.shown | self._held.old:
            await self.drop_guard(name)
        await self._drop_copy(name)
        await self._rows("unstage", **self._mine, tab=name)

    async def _drop_copy(self, name: str) -> None:
        await self._session.execute(
            sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, self._staging(name)))
        )

    async def drop_copies(self, names: Iterable[str]) -> None:
        """Remove copies whose rows are in their places."""
        for name in names:
            await self._drop_copy(name)

    async def lock_place(self, plain: SourceTable) -> None:
        """Keep others from writing to a table until the transaction ends."""
        await self._session.execute(
            sql.SQL("LOCK TABLE ONLY {} IN SHARE ROW EXCLUSIVE MODE").format(
                sql.Identifier(plain.schema, plain.relation)
            )
        )

    async def adopt(self, found: HerdTable, gid: int) -> None:
        """Take a table that has the rows for a copy of that GID.

        It takes no writes of others from now on.
        """
        await self.guard(found.table)
        await self.note_staged(found.table, gid, found)

    # ---- into their places -----------------------------------------------------------------

    async def make_room(self, found: Iterable[HerdTable]) -> None:
        """Make and guard places, so that rows alone bring copies there afterwards.

        Raises:
            StoppedError: a table is in the way, or another subscription has it.
        """
        for one in found:
            plain = one.table
            await self.require_free([plain.name])
            await self.require_plain([plain.name])
            if not await self._columns(plain.name):
                await require_schema(self._session, plain.schema)
                await self._session.execute(
                    sql.SQL("CREATE TABLE {} ({})").format(
                        sql.Identifier(plain.schema, plain.relation), _ready(one.declared)
                    )
                )
            for column in await self._rows(
                "demanding", tab=plain.name, names=list(self._surplus(plain))
            ):  # the rows that come do without it
                await self._session.execute(
                    sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL").format(
                        sql.Identifier(plain.schema, plain.relation),
                        sql.Identifier(column["name"]),
                    )
                )
            await self.guard(plain)

    async def show(
        self, staged: ShownTable, plain: SourceTable, gid: int, *, rows_only: bool = False
    ) -> None:
        """Put a copy into the place of its table.

        A table that is there and has these columns keeps its indexes, views and grants: its rows
        are exchanged. DELETE, because TRUNCATE would show an empty table to older snapshots.

        Args:
            staged: the copy.
            plain: the table as the herd has it.
            gid: from which on it is shown.
            rows_only: its place is guarded, and the copy is removed later, as are columns that are
                wanted no more.

        Raises:
            StoppedError: a table is in the way.
            RowsKeptError: a trigger drops rows.
        """
        name = plain.name
        await self.require_plain([name])
        here = await self._columns(name)
        place = sql.Identifier(plain.schema, plain.relation)
        copy = sql.Identifier(staged.table.schema, staged.table.relation)
        there = await self._columns(copy.as_string(None))
        if here and not (has_columns(here, plain.columns) and _computes_alike(here, there)):
            if name not in self._held.old:
                raise StoppedError(
                    f"table {name} of the subscriber has other columns than in the herd: drop or"
                    " rename it there, and repeat `pgherd subscribe`"
                )
            await self._session.execute(sql.SQL("DROP TABLE {}").format(place))
            here = {}
        drops: tuple[str, ...] = ()
        if staged.is_in_place:
            pass  # it has the rows
        elif here:
            drops = tuple(column for column in self._surplus(plain) if column in here)
            if not rows_only:
                await self._drop_columns(plain, drops)
                drops = ()
                await self.lock_place(plain)  # it is guarded when it has the rows
            await exchange(self._session, plain, column_names(plain), copy)
            if not rows_only:
                await self._session.execute(sql.SQL("DROP TABLE {}").format(copy))
        else:
            await require_schema(self._session, plain.schema)
            # Renamed there: in our schema the name may be that of a table of ours.
            await self._session.execute(
                sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(copy, sql.Identifier(plain.schema))
            )
            await self._session.execute(
                sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                    sql.Identifier(plain.schema, staged.table.relation),
                    sql.Identifier(plain.relation),
                )
            )
        if not rows_only or not await self._is_guarded(name):
            await self.guard(plain)
        await self._rows("forget_table", **self._mine, tab=name)
        await self._rows("show_table", **self._mine, tab=name, gid=gid)
        await self._define(plain, staged.of, staged.read_types, drops)

    def _surplus(self, plain: SourceTable) -> Iterator[str]:
        """The columns of the herd that a table has had, and that are selected no more."""
        before = self._held.old.get(plain.name)
        wanted = {column.name for column in plain.columns}
        if before is not None:
            has_had = [column.name for column in before.table.columns]
            yield from (name for name in [*has_had, *before.drops] if name not in wanted)

    async def drop_surplus(self) -> None:
        """Drop the columns of which ``show`` has said that the rows do without them."""
        for one in self._held.shown.values():
            if one.drops:
                await self._drop_columns(one.table, one.drops)
                await self._define(one.table, one.of, one.read_types)

    async def _drop_columns(self, plain: SourceTable, names: Iterable[str]) -> None:
        for name in names:
            await self._session.execute(
                sql.SQL("ALTER TABLE {} DROP COLUMN IF EXISTS {}").format(
                    sql.Identifier(plain.schema, plain.relation), sql.Identifier(name)
                )
            )

    async def _define(
        self,
        plain: SourceTable,
        of: TableSelection | None,
        types: tuple[str, ...],
        drops: tuple[str, ...] = (),
    ) -> None:
        await self._session.execute(
            "UPDATE pgherd_subscriber.tables SET definition = %s"
            " WHERE subscription = %s AND tab = %s AND NOT staged",
            (definition(plain, of, types, drops), self._subscription.name, plain.name),
        )

    async def extend(self, found: HerdTable) -> None:
        """Give a table its last column."""
        await self._session.execute(
            sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
                sql.Identifier(found.table.schema, found.table.relation),
                sql.Identifier(found.table.columns[-1].name),
                _ready(found.types[-1]),
            )
        )
        await self._define(found.table, found.selection, found.read_types)

    # ---- guards ----------------------------------------------------------------------------

    async def guard(self, table: SourceTable) -> None:
        """Have a table refuse what no feeder writes."""
        await self._guard(table.schema, table.relation)

    async def _guard(self, schema: str, relation: str) -> None:
        await self._session.execute(
            sql.SQL(
                "CREATE OR REPLACE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE OR"
                " TRUNCATE ON {} FOR EACH STATEMENT EXECUTE FUNCTION pgherd_subscriber.refuse({})"
            ).format(
                sql.Identifier(_GUARD),
                sql.Identifier(schema, relation),
                sql.Literal(self._subscription.name),
            )
        )
        if await self._rows("inherits", schema=schema, relation=relation):
            # Who writes to a table above it fires that one's triggers, but for those of rows.
            await self._session.execute(
                sql.SQL(
                    "CREATE OR REPLACE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE ON {}"
                    " FOR EACH ROW WHEN (pg_catalog.current_setting('pgherd_subscriber.feeding',"
                    " true) IS DISTINCT FROM 'on') EXECUTE FUNCTION pgherd_subscriber.refuse({})"
                ).format(
                    sql.Identifier(_ROW_GUARD),
                    sql.Identifier(schema, relation),
                    sql.Literal(self._subscription.name),
                )
            )

    async def _is_guarded(self, name: str) -> bool:
        return bool(await self._rows("guarded", **self._mine, tab=name))

    async def drop_guard(self, name: str) -> None:
        """Have a table take writes, if it is there and the guard is ours."""
        for row in await self._rows("guarded", **self._mine, tab=name):
            await self._drop_guard(row)

    async def inherit_guard(self, name: str, former: str) -> None:
        """Take the guard of a table over from another subscription, if we have the table.

        Args:
            name: of the table.
            former: the other subscription.
        """
        for row in await self._rows("guarded", name=former, tab=name):
            if name in self._subscription.tables:
                await self._drop_guard(row)
                await self._guard(row["schema"], row["relation"])

    async def drop_guards(self, but: Collection[str] = (), *, former: str | None = None) -> None:
        """Have all places take writes that we have guarded, whatever became of the order.

        A table that was renamed is among them, and a place that was not filled.

        Args:
            but: names of the tables that keep theirs.
            former: another subscription, whose guards are meant in place of ours.
        """
        mine = self._mine if former is None else {"name": former}
        for row in await self._rows("guards", **mine, kept=list(but)):
            await self._drop_guard(row)

    async def _drop_guard(self, row: Mapping[str, Any]) -> None:
        await self._session.execute(
            sql.SQL("DROP TRIGGER {} ON {}").format(
                sql.Identifier(row["guard"]), sql.Identifier(row["schema"], row["relation"])
            )
        )

    async def leave_tables(self, names: Iterable[str]) -> None:
        """Let go of tables: their rows stay as they are."""
        left = list(names)
        for name in left:
            await self._rows("forget_table", **self._mine, tab=name)
        if left:  # it may have another name here by now
            kept = {row["tab"] for row in await self._rows("tables", **self._mine)}
            await self.drop_guards(but=kept)

    async def let_stand(self, names: Iterable[str]) -> None:
        """Note that tables do not follow, whatever order comes next: their rows stay."""
        values = {"generation": self._subscription.generation, "tables": list(names)}
        await self._rows("let_stand", **self._mine, **values)

    async def unguard(self) -> None:
        """Have its tables take writes, with numbers that no row has; all else stays."""
        # First what may read whole tables: readers wait for whoever drops a trigger.
        await Numbering(self._session).pass_rows(self._held.shown | self._held.old)
        await self.drop_guards()

    async def _rows(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        return await ask_subscriber(self._session, name, **values)

    def _staging(self, name: str) -> str:
        return f"copy_{sha256(f'{self._subscription.name} {name}'.encode()).hexdigest()[:24]}"


def _computes_alike(here: _Columns, there: _Columns) -> bool:
    """Have two tables the same expressions for the generated columns of the second one?"""
    return all(
        here[name]["computed"] == there[name]["computed"]
        for name in here.keys() & there.keys()
        if there[name]["computed"] is not None
    )


def _ready(text: str) -> sql.SQL:
    """What the herd's server has quoted already."""
    return sql.SQL(text)
