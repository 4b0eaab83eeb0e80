"""Changes wait to be written, and not too many of them."""

from pgherd_sidecar.tables.folding import RowChange
from pgherd_sidecar.tables.pending import Pending, PendingTransactions, deletions


def test_changes_wait_up_to_a_number_and_up_to_a_size() -> None:
    pending = Pending()
    while not pending.is_full:
        pending.add(RowChange("s.t", None, ("1", "x" * (1 << 20))))
    assert len(pending.take()) == 8 and not pending.steps and not pending.is_full
    while not pending.is_full:
        pending.add(RowChange("s.t", ("1",), None))
    assert len(pending.steps) == 5000


def gone(key: str, table: str = "s.t") -> RowChange:
    return RowChange(table, (key,), None)


def new(key: str, table: str = "s.t") -> RowChange:
    return RowChange(table, None, (key, "new"))


def full(*steps: RowChange, gid: int) -> PendingTransactions:
    pending = PendingTransactions({"s.t": (0,), "s.u": (0,)})
    pending.begin(gid)
    for step in steps:
        pending.add(step)
    return pending


def test_what_a_transaction_deletes_waits_until_it_comes_again_or_the_end_is_known() -> None:
    pending = full(gone("1"), gone("2"), gone("3"), gone("4", "s.u"), gid=7)
    assert pending.is_torn
    assert pending.part({"s.t"}) == [gone("4", "s.u")]  # of that one nothing is lost
    pending.add(new("2"))
    pending.add(new("9"))
    assert pending.part({"s.t"}) == [gone("2"), new("2"), new("9")]
    assert deletions(pending.held) == [gone("1"), gone("3")] and not pending.is_empty
    pending.add(new("3"))
    pending.begin(8)
    pending.add(new("1"))
    assert pending.take() == [gone("1"), gone("3"), new("3"), new("1")] and pending.is_empty


def test_whole_transactions_are_written_before_one_that_deletes() -> None:
    pending = full(gone("1"), new("1"), gid=7)
    pending.begin(8)
    pending.add(gone("2"))
    assert not pending.is_torn and pending.part({"s.t"}) == [gone("1"), new("1")]
    assert pending.is_torn and pending.bytes == 201 and pending.steps == [gone("2")]
    pending = full(gone("1"), gid=7)
    pending.begin(8)
    pending.add(new("1"))
    assert pending.part({"s.t"}) == [gone("1"), new("1")]  # nothing of it is torn
