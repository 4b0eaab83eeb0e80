"""What has happened to one row, as far back as the log is kept (Postgres-R, section 5.4).

It reads the whole log of one member: there is no index by row. Keeps nothing.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pgherd_sidecar.client.stream.changelog import ChangeLog
from pgherd_sidecar.client.stream.changes import ChangesError, LoggedChange, PositionLostError


@dataclass(frozen=True, slots=True)
class RowName:
    """A row of the herd.

    Attributes:
        table: qualified name, as changes have it.
        key: values of its key, in the order of the key's columns.
    """

    table: str
    key: tuple[str, ...]

    @classmethod
    def of(cls, table: str, key: Sequence[str]) -> "RowName":
        """The row of a table that may be named without its schema, which is ``public`` then."""
        return cls(table if "." in table else f"public.{table}", tuple(key))

    def is_changed_by(self, change: LoggedChange) -> bool:
        """Whether a change is of this row, or of all rows of its table.

        Raises:
            ChangesError: the key has another number of columns.
        """
        if change.table != self.table:
            return False
        if change.key is None:
            return change.op == "truncate"
        if len(change.key) != len(self.key):
            raise ChangesError(
                f"at GID {change.gid} the key of {self.table} has the columns"
                f" {', '.join(change.key)}: give a value for each"
            )
        return tuple(change.key.values()) == self.key


class History:
    """The changes of a row, the oldest first.

    Args:
        log: of the herd.
        row: whose.

    Attributes:
        begins: the oldest position that was read; 0 before.
    """

    def __init__(self, log: ChangeLog, row: RowName) -> None:
        self.begins = 0
        self._log = log
        self._row = row

    async def changes(self) -> AsyncIterator[LoggedChange]:
        """Read the log from its begin on, which may move on before the first change is found.

        Raises:
            ChangesError: the log can't be read.
        """
        told = False
        while True:
            before, self.begins = self.begins, await self._log.begins()
            try:
                async for changes in self._log.between(self.begins - 1, await self._log.visible()):
                    for change in changes:
                        if self._row.is_changed_by(change):
                            told = True
                            yield change
            except PositionLostError:
                if told or self.begins == before:
                    raise
            else:
                return
