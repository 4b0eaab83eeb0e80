"""Changes that wait to be written, within bounds of number and size.

Pure.
"""

from collections.abc import Container, Iterable, Mapping

from pgherd_sidecar.tables.folding import Key, RowChange, Step

_STEPS = 5000
_BYTES = 8 << 20
_ROW_BYTES = 200
"""A change takes so much memory beside its values, about."""


class Pending:
    """Changes that wait to be written together: not too many, and not too large.

    Attributes:
        steps: in their order.
        bytes: of their values, about.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.bytes = 0

    def add(self, step: Step) -> None:
        """Take a change."""
        self.steps.append(step)
        if isinstance(step, RowChange):
            for values in (step.old, step.new):
                if values is not None:
                    self.bytes += sum([len(value) for value in values if value])
        self.bytes += _ROW_BYTES

    @property
    def is_full(self) -> bool:
        """They are to be written before another one is taken."""
        return len(self.steps) >= _STEPS or self.bytes >= _BYTES

    def take(self) -> list[Step]:
        """Hand them out, and have none."""
        steps, self.steps, self.bytes = self.steps, [], 0
        return steps


Held = Mapping[str, Iterable[Key]]
"""Keys of rows, by table."""


def deletions(held: Held) -> list[Step]:
    """The steps that delete rows."""
    return [RowChange(table, key, None) for table, keys in held.items() for key in keys]


class PendingTransactions(Pending):
    """Likewise. What one transaction deletes and inserts again may be handed out together.

    Args:
        keys: for each table, the positions of its key's columns; empty where it has none.

    Attributes:
        gid: of the transaction to which the next change belongs.
        gone: rows that it has deleted and has not inserted again so far, by table. They are not
            among the steps.
    """

    def __init__(self, keys: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.gid = 0
        self.gone: dict[str, dict[Key, None]] = {}
        self._keys = keys
        self._begun = (0, 0)  # so many steps, and bytes, are of transactions before this one

    def begin(self, gid: int) -> None:
        """What comes now is of this transaction, and the one before is whole."""
        self.gid = gid
        self._release()
        self._begun = len(self.steps), self.bytes

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not self.steps and not self.gone

    @property
    def is_torn(self) -> bool:
        """Rows may have been deleted here that the rest of a large transaction inserts again."""
        return not self._begun[0] and (bool(self.gone) or self._has_deletes())

    def _has_deletes(self) -> bool:
        return any(
            isinstance(step, RowChange) and step.new is None
            for step in self.steps[self._begun[0] :]
        )

    def part(self, holds: Container[str]) -> list[Step]:
        """Hand out what may be written before the rest of the transaction is known.

        Args:
            holds: names of tables whose rows are not to be deleted if they come again.
        """
        count, size = self._begun
        if count and self._has_deletes():
            steps, self.steps = self.steps[:count], self.steps[count:]
            self.bytes -= size
        else:
            steps = self._held_back(holds) if self.is_torn else self.steps
            self.steps, self.bytes = [], 0
        self._begun = 0, 0
        return steps

    def _held_back(self, holds: Container[str]) -> list[Step]:
        """The steps without deletions of rows that have not come again."""
        steps: list[Step] = []
        again: list[Step] = []
        for step in self.steps:
            if isinstance(step, RowChange) and step.table in holds:
                gone = self.gone.setdefault(step.table, {})
                if step.new is None and step.old is not None:
                    gone[step.old] = None
                    continue
                if step.old is None and step.new is not None:
                    key = tuple([step.new[at] for at in self._keys[step.table]])
                    if key in gone:
                        del gone[key]
                        again.append(RowChange(step.table, key, None))
            steps.append(step)
        self.gone = {table: keys for table, keys in self.gone.items() if keys}
        return [*again, *steps]

    @property
    def held(self) -> Held:
        """The rows whose deletions are held back at this moment."""
        return {table: list(keys) for table, keys in self.gone.items()}

    def _release(self) -> None:
        """The transaction is whole: what has not come again is gone."""
        if self.gone:
            self.steps = [*deletions(self.gone), *self.steps]
            self.gone = {}

    def take(self) -> list[Step]:
        """Hand all out, which is of whole transactions, and have none."""
        self._release()
        self._begun = 0, 0
        return super().take()
