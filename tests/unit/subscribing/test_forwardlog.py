"""The rows of the log that a subscriber keeps for others: whole, in order, and checked."""

import msgspec
import pytest
from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.forwardlog import KeptRow, checksum, decode, encode
from pgherd_sidecar.subscribing.state.herd import HerdTable
from pgherd_sidecar.tables.model import SourceColumn, SourceTable


def change(gid: int, value: str | None = "v") -> LoggedChange:
    return LoggedChange(gid, 0, 1, 9, "s.t", "insert", {"id": "1"}, {"id": "1", "v": value})


def kept(changes: list[LoggedChange], extended: HerdTable | None = None) -> list[KeptRow]:
    return [
        KeptRow(n, first, last, checksum("s", first, last, body), body)
        for n, (first, last, body) in enumerate(encode(changes, extended), 1)
    ]


def test_changes_come_back_as_they_were() -> None:
    command = LoggedChange(4, 0, 1, 9, None, "command", command='{"sql": "ALTER TABLE s.t"}')
    given = [change(2), change(2, None), change(3, "ä\n"), command]
    (row,) = kept(given)
    assert (row.first, row.last) == (2, 4)
    assert decode("s", row) == (given, None)


def test_a_large_transaction_takes_several_rows_and_nothing_is_lost() -> None:
    given = [change(5), *(change(6, "x" * 300_000) for _ in range(9)), change(7)]
    found = kept(given)
    assert len(found) > 2
    assert [one for row in found for one in decode("s", row)[0]] == given
    assert [row.first for row in found][1:] == [6] * (len(found) - 1)


def test_what_a_table_has_become_is_in_the_last_row_only() -> None:
    column = SourceColumn("id", "integer", 23, -1, generated=False, as_text=False)
    table = SourceTable(1, "s.t", "s", "t", 0, (column,), "key", (0,))
    became = HerdTable(table, parts=False, declared="id int", image="", types=("integer",))
    found = kept([change(6, "x" * 2_000_000), change(6)], became)
    assert [decode("s", row)[1] for row in found] == [None, became]


@pytest.mark.parametrize("what", ["body", "first", "last", "subscription"])
def test_a_damaged_row_is_refused(what: str) -> None:
    (row,) = kept([change(2)])
    if what == "body":
        body = bytes([*row.body[:-1], row.body[-1] ^ 1])
        row = msgspec.structs.replace(row, body=body)
    elif what == "first":
        row = msgspec.structs.replace(row, first=1)
    elif what == "last":
        row = msgspec.structs.replace(row, last=3)
    with pytest.raises(StoppedError, match="--provider"):
        decode("other" if what == "subscription" else "s", row)
