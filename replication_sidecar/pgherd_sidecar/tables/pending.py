"""Changes that wait to be written, within bounds of number and size.

Pure.
"""

from pgherd_sidecar.tables.folding import RowChange, Step

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
