"""Changes wait to be written, and not too many of them."""

from pgherd_sidecar.tables.folding import RowChange
from pgherd_sidecar.tables.pending import Pending


def test_changes_wait_up_to_a_number_and_up_to_a_size() -> None:
    pending = Pending()
    while not pending.is_full:
        pending.add(RowChange("s.t", None, ("1", "x" * (1 << 20))))
    assert len(pending.take()) == 8 and not pending.steps and not pending.is_full
    while not pending.is_full:
        pending.add(RowChange("s.t", ("1",), None))
    assert len(pending.steps) == 5000
