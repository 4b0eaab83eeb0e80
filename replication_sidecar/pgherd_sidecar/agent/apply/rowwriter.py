"""Writes the rows of one writeset when they could not be written together with others.

A batch that fails is tried once more: writeset by writeset, then row by row. So all that can be
applied is, and the entry, the table and the row that can't be are known. A writeset that carries a
fingerprint is compared with it however it was written.

Rows that were updated in place are deleted and inserted then. One may take another one's value. And
PostgreSQL moves no row out of a partition that has partitions and that foreign keys refer to.

An index accepts a value or not by how it is compressed: ``pglz`` gives up on a value that
``lz4`` makes small enough, and the other way round. The session at the origin chose one of them.
So a row that is too large for an index (54000) is tried with the other one, too.

It keeps nothing.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from pgherd_sidecar.agent.apply.applying import About
from pgherd_sidecar.core.replication.merge import Item, Plan, Statement, merge_writesets
from pgherd_sidecar.pg.failures import DIFFERENT, Trouble, judge_error
from pgherd_sidecar.pg.pipeline import Pipeline, Prepared, RoundFailedError
from pgherd_sidecar.pg.rows import RowStatements, rows_of

TOO_LARGE: Final = "54000"
COMPRESSION: Final = ("pglz", "lz4")
COMPRESS: Final = b"SELECT set_config('default_toast_compression', $1, true)"
INVALID_VALUE: Final = "22023"
"""The answer of a server that was built without lz4."""
AGAIN_AT_ONCE: Final = ("40P01", "57014")
AT_ONCE_MAX: Final = 10
_STATEMENTS: Final = {
    b"pgherd_compress": COMPRESS,
    b"pgherd_savepoint": b"SAVEPOINT pgherd_rows",
    b"pgherd_undo": b"ROLLBACK TO SAVEPOINT pgherd_rows",
}
_SAVEPOINT: Final = Prepared(b"pgherd_savepoint", (), ())
_UNDO: Final = Prepared(b"pgherd_undo", (), ())


class RowWriter:
    """Writes to one connection.

    Args:
        pipeline: the connection.
        rows: statements for rows.
    """

    def __init__(self, pipeline: Pipeline, rows: RowStatements) -> None:
        self._pipeline = pipeline
        self._rows = rows

    async def write(
        self,
        about: About,
        keys: "array[int]",
        items: list[Item],
        compare: Sequence[Prepared] = (),
    ) -> None:
        """Write a writeset as one transaction, with its link of the chain.

        Args:
            about: its GID, and that of the link before it; is told where it fails.
            keys: its ``key_array``.
            items: its decoded body.
            compare: what comes after its rows, for its fingerprint.

        Raises:
            Exception: of any type; about a row that can't be written most likely.
        """
        tables = dict.fromkeys(table for table, _, _ in items)
        about.table = ", ".join(tables)
        await self._rows.learn_tables(list(tables))
        plan = merge_writesets([(keys, items)], self._rows)
        refused = await self._refusal(about, plan, compare)
        if refused is not None:  # in place, perhaps: see ``Columns.together``
            self._rows.keep_apart(tables)
            together, plan = plan, merge_writesets([(keys, items)], self._rows)
            if plan != together:
                refused = await self._refusal(about, plan, compare)
        if refused is not None:
            await self.write_rows(about, plan, [self._rows.link(about.gid, about.prev), *compare])

    async def _refusal(self, about: About, plan: Plan, compare: Sequence[Prepared]) -> str | None:
        """Write a plan as a whole; return the SQLSTATE if it is refused each time."""
        try:
            await self._run([*self._rows.prepared(plan, about.gid, about.prev), *compare])
        except Exception as error:  # judged like in ``applying``
            found = judge_error(error)
            if found.sqlstate == DIFFERENT:  # all could be written, and would look so again
                about.table = found.table
                raise
            if found.trouble is not Trouble.REFUSED:
                raise
            return found.sqlstate
        return None

    async def write_rows(
        self, about: About, plan: Plan, last: Sequence[Prepared] = (), *, inside: bool = False
    ) -> None:
        """Write a plan row by row, each under the compression that lets it in.

        Args:
            about: is told which row fails.
            plan: what to write.
            last: what comes after it.
            inside: a transaction is open, and stays so; else this is one.

        Raises:
            RoundFailedError: a row can't be written; a transaction that was open is lost.
            ServerGoneError: nobody knows.
        """
        rows: list[tuple[Statement, Prepared]] = []
        for one in rows_of(plan):
            self._tell(about, one)
            rows.append((one, self._rows.single(one)))
        for name, query in _STATEMENTS.items():
            if not self._pipeline.knows(name):
                self._pipeline.prepare(name, query)
        methods = [COMPRESSION[0]] * len(rows)
        refused: dict[int, RoundFailedError] = {}
        while True:
            round_, places = _with_methods(rows, methods)
            if inside:
                round_.insert(0, _UNDO if refused else _SAVEPOINT)
                places.insert(0, 0)
            try:
                await self._run([*round_, *last], tries=1 if inside else AT_ONCE_MAX)
            except RoundFailedError as error:
                place = places[error.statement] if error.statement < len(places) else len(rows)
                self._tell(about, rows[place][0] if place < len(rows) else None)
                if place in refused and error.sqlstate in (TOO_LARGE, INVALID_VALUE):
                    raise refused[place] from None
                if place == len(rows) or error.sqlstate != TOO_LARGE:
                    raise
                refused[place] = error
                other = COMPRESSION[methods[place] == COMPRESSION[0]]
                methods[place:] = [other] * (len(rows) - place)  # neighbours are mostly alike
            else:
                return

    def _tell(self, about: About, one: Statement | None) -> None:
        about.statement = one.op.name if one is not None else ""
        about.table = one.table if one is not None else ""
        about.row = self._rows.primary_key(one) if one is not None else ""

    async def _run(self, statements: Sequence[Prepared], tries: int = AT_ONCE_MAX) -> None:
        for _ in range(tries):
            self._pipeline.provide(statements)
            try:
                await self._pipeline.run(statements)
            except RoundFailedError as error:
                failed = error
                if error.sqlstate not in AGAIN_AT_ONCE or error.raised:
                    break
            else:
                return
        raise failed


def _with_methods(
    rows: "Sequence[tuple[Statement, Prepared]]", methods: Sequence[str]
) -> tuple[list[Prepared], list[int]]:
    """The statements of rows, with what changes the compression; and which row each belongs to."""
    round_: list[Prepared] = []
    places: list[int] = []
    current = ""
    for place, ((_, statement), method) in enumerate(zip(rows, methods, strict=True)):
        if method != current:
            current = method
            round_.append(Prepared(b"pgherd_compress", (method.encode(),), (0,)))
            places.append(place)
        round_.append(statement)
        places.append(place)
    return round_, places
