"""What a member remembers of which entries committed."""

from pathlib import Path

from pgherd_sidecar.agent.checkpoint import verdicts
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts


def noted(first: int, committed: str) -> Verdicts:
    found = Verdicts()
    for position, one in enumerate(committed, first):
        found.note_decision(position, committed=one == "1")
    return found


def test_verdicts_are_known_from_the_first_entry_that_was_delivered_on() -> None:
    found = noted(1, "0110")
    assert (found.first, found.last, found.between(2, 4)) == (1, 4, "110")
    joined = noted(500, "011")
    assert (joined.first, joined.last, joined.between(500, 501)) == (500, 502, "01")


def test_what_is_delivered_again_is_known_and_after_a_gap_nothing_else_is() -> None:
    found = noted(1, "0110")
    found.note_decision(3, committed=True)
    found.note_decision(5, committed=True)
    assert found.between(1, 5) == "01101"
    found.note_decision(9, committed=False)
    assert (found.first, found.last) == (9, 9)
    found.note_decision(3, committed=True)
    assert (found.first, found.last) == (3, 3)


def test_what_the_log_no_longer_holds_is_forgotten() -> None:
    found = noted(1, "0110")
    found.forget_before(3)
    found.forget_before(2)
    assert (found.first, found.last, found.between(3, 4)) == (3, 4, "10")
    found.forget_before(100)
    assert (found.first, found.last) == (5, 4)
    found.note_decision(5, committed=True)
    assert found.between(5, 5) == "1"


def test_where_the_pieces_of_what_committed_begin_is_known_as_long_as_its_verdict() -> None:
    found = noted(1, "0110")
    found.note_decision(5, committed=True, pieces_from=2)
    found.note_decision(6, committed=False, pieces_from=3)
    found.note_decision(7, committed=True, pieces_from=4)
    assert found.pieces(0, 7) == {5: 2, 7: 4}
    assert (found.pieces(4, 6), found.pieces(5, 6)) == ({5: 2}, {})
    found.forget_before(6)
    assert found.pieces(0, 7) == {7: 4}
    found.note_decision(9, committed=True)
    assert found.pieces(0, 9) == {}


def test_a_log_that_begins_among_the_pieces_of_a_transaction_is_whole_after_its_commit() -> None:
    found = noted(1, "0110")
    found.note_decision(5, committed=True, pieces_from=2)
    found.note_decision(6, committed=True, pieces_from=4)
    found.note_decision(7, committed=True)
    whole = {1: 1, 2: 2, 3: 6, 4: 6, 5: 7, 6: 7, 7: 7, 8: 8}
    assert {first: found.whole_from(first) for first in whole} == whole


def test_the_file_brings_them_back_unless_it_is_damaged(tmp_path: Path) -> None:
    assert verdicts.load(tmp_path).last == 0
    found = noted(7, "0110" * 1000)
    found.note_decision(4007, committed=True, pieces_from=3000)
    verdicts.write(tmp_path, found.copy())
    again = verdicts.load(tmp_path)
    assert (again.first, again.last, again.known) == (7, 4007, found.known)
    assert again.pieces(0, 4007) == {4007: 3000}
    content = bytearray((tmp_path / verdicts.FILE).read_bytes())
    for place in range(0, len(content), 7):
        damaged = content.copy()
        damaged[place] ^= 1
        (tmp_path / verdicts.FILE).write_bytes(damaged)
        now = verdicts.load(tmp_path)
        assert (now.first, now.known) in ((1, b""), (7, found.known))
