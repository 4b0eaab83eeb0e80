"""The scrub's decisions: what is asked next, what answers mean, how it is paced. No clock."""

import itertools
import random
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from pgherd_sidecar.core.replication.entries import Marker, encode_entry, iter_entries
from pgherd_sidecar.core.replication.scrub.ledger import (
    CONFIRMING_TRIES,
    KEYS_MAX,
    TRIES,
    Conclusion,
    Ledger,
    Step,
    blamed,
)
from pgherd_sidecar.core.replication.scrub.messages import (
    ADDRESS,
    Answer,
    Kind,
    Outcome,
    Purpose,
    Request,
    Subject,
    decode_message,
    encode_message,
)
from pgherd_sidecar.core.replication.scrub.pacing import (
    ROWS_MAX,
    due_s,
    first_behind,
    parts_left,
    recheck_due,
    rest_s,
    rows_next,
)
from pgherd_sidecar.core.replication.scrub.saved import Position, Saved, summary

MEMBERS = (1, 2, 3)
PART = Subject(Kind.RANGE, "public.t", ("1",), ("9",))
WHOLE = Subject(Kind.RANGE, "public.m")
NAMES = Subject(Kind.NAMES)
INDEX = Subject(Kind.INDEX, "public.t", index="public.i")
Found = dict[str, str] | Outcome


class Herd:
    """One ledger, and members that answer as a test says."""

    def __init__(self, saved: Saved | None = None) -> None:
        self.ledger = Ledger(saved or Saved(began_s=100.0, last_s=100.0))
        self.gid = 0
        self._ids = itertools.count()

    def ask(
        self,
        subject: Subject,
        answers: Mapping[int, Found],
        purpose: Purpose = Purpose.SCAN,
        *,
        scanned: Subject | None = None,
        ranged: bool = False,
        number: int | None = None,
    ) -> list[Conclusion]:
        self.gid += 10
        saved = self.ledger.saved
        request = Request(
            id=str(next(self._ids)),
            purpose=purpose,
            subject=subject,
            number=saved.number if number is None else number,
            began_s=saved.began_s,
            ends_s=saved.began_s + 1000,
            at_s=100.0 + self.gid,
            ranged=ranged,
            scanned=None if purpose is Purpose.RECHECK else scanned or subject,
        )
        concluded = self.ledger.take_request(self.gid, request, MEMBERS)
        assert concluded is not None
        for member, found in answers.items():
            concluded += self.ledger.take_answer(answer(request.id, member, found))
        return concluded

    def go_on(self, answers: Mapping[int, Found]) -> list[Conclusion]:
        """Ask what the ledger wants to know next."""
        step = self.ledger.step
        assert step is not None
        return self.ask(step.subject, answers, step.purpose, scanned=step.scanned)


def answer(request: str, number: int, found: Found) -> Answer:
    if isinstance(found, Outcome):
        return Answer(request, number, f"n{number}", found)
    return Answer(request, number, f"n{number}", Outcome.READ, found, 7, 0.25 * number)


def all_same(found: dict[str, str]) -> dict[int, Found]:
    return dict.fromkeys(MEMBERS, found)


def whats(concluded: list[Conclusion]) -> list[str]:
    return [one.what for one in concluded]


# ---- rounds ----------------------------------------


def test_what_is_the_same_everywhere_counts_and_the_pass_goes_on() -> None:
    herd = Herd()
    assert herd.ask(PART, all_same({"": "a"}), ranged=True) == []
    assert herd.ledger.saved.position == Position("public.t", ("9",))
    assert herd.ledger.saved.rows == 7
    assert herd.ledger.work_s == 0.75
    assert not herd.ledger.is_open
    herd.ask(Subject(Kind.RANGE, "public.t", ("9",)), all_same({"": "a"}), ranged=True)
    assert herd.ledger.saved.position == Position("public.t", None, "")
    herd.ask(INDEX, all_same({}))
    assert herd.ledger.saved.position == Position("public.t", None, "public.i")
    assert whats(herd.ask(NAMES, all_same({"public.t": "c"}))) == ["passed"]
    saved = herd.ledger.saved
    assert (saved.passes, saved.number, saved.position) == (1, 2, Position())
    assert saved.began_s == 1100.0  # the next one begins when this one was to be over
    assert saved.differences == []


def test_rows_that_differ_are_told_when_they_differ_a_second_time() -> None:
    herd = Herd()
    assert herd.ask(PART, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}}, ranged=True) == []
    assert herd.ledger.step is not None
    assert herd.ledger.step.subject == Subject(Kind.KEYS, "public.t", ("1",), ("9",))
    rows = {'["2"]': "x", '["3"]': "y", '["4"]': "z"}
    changed = rows | {'["3"]': "other"}
    del changed['["4"]']
    assert herd.go_on({1: rows, 2: changed, 3: rows}) == []
    assert herd.ledger.step.subject == Subject(Kind.ROWS, "public.t", keys=('["3"]', '["4"]'))
    assert herd.ledger.saved.position == Position()
    two = {'["3"]': "y", '["4"]': "z"}
    (one,) = herd.go_on({1: two, 2: {'["3"]': "other"}, 3: two})
    found = one.difference
    assert found is not None
    assert (one.what, found.members, found.majority, found.gid) == ("different", ("n2",), True, 30)
    assert found.keys == {'["3"]': ("n2",), '["4"]': ("n2",)}
    assert herd.ledger.saved.position == Position("public.t", ("9",))
    assert herd.ledger.step is None
    (told,) = summary(herd.ledger.saved)
    assert (told["kind"], told["table"], told["members"]) == ("rows", "public.t", ["n2"])


def test_what_differs_only_once_is_not_told() -> None:
    herd = Herd()
    herd.ask(PART, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}}, ranged=True)
    assert whats(herd.go_on(all_same({'["3"]': "y"}))) == ["unconfirmed"]
    assert herd.ledger.saved.differences == []
    assert herd.ledger.saved.position == Position("public.t", ("9",))
    herd.ask(WHOLE, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}})
    assert whats(herd.go_on(all_same({"": "a"}))) == ["unconfirmed"]
    assert herd.ledger.saved.differences == []


def test_rows_that_members_sort_otherwise_are_no_difference() -> None:
    """Each lists another row in the range; asked for by their keys all have both."""
    herd = Herd()
    herd.ask(PART, {1: {"": "a"}, 2: {"": "b"}}, ranged=True)
    herd.ledger.close()
    herd.go_on({1: {'["ä"]': "x"}, 2: {'["z"]': "y"}})
    herd.ledger.close()
    both = {'["ä"]': "x", '["z"]': "y"}
    assert whats(herd.go_on({1: both, 2: both})) == ["unconfirmed"]


def test_what_has_no_key_is_confirmed_as_a_whole() -> None:
    herd = Herd()
    versions: dict[int, Found] = {1: {"": "a"}, 2: {"": "a"}, 3: {"": "b"}}
    herd.ask(WHOLE, versions)
    assert herd.ledger.step == Step(Purpose.CONFIRM, WHOLE, WHOLE)
    (one,) = herd.go_on(versions)
    assert one.difference is not None
    assert (one.difference.members, one.difference.keys) == (("n3",), {})


def test_of_two_members_that_differ_none_is_blamed() -> None:
    assert blamed({"n1": "a", "n2": "b"}) == (("n1", "n2"), False)
    assert blamed({"n1": "a", "n2": "a", "n3": None}) == (("n3",), True)
    assert blamed({"n1": "a", "n2": "b", "n3": "c"}) == (("n1", "n2", "n3"), False)
    assert blamed({"n1": "a", "n2": "a", "n3": "b", "n4": "b"})[1] is False


def test_an_index_is_judged_by_each_member_alone() -> None:
    herd = Herd()
    answers: dict[int, Found] = {1: {}, 2: Outcome.ABSENT, 3: {"": "lacks a tuple"}}
    herd.ask(INDEX, answers)
    (one,) = herd.go_on(answers)
    assert one.difference is not None
    assert one.difference.members == ("n3",)
    assert one.difference.text == "n3: lacks a tuple"
    assert summary(herd.ledger.saved)[0]["kind"] == "index"


def test_only_some_keys_are_told() -> None:
    herd = Herd()
    herd.ask(PART, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}}, ranged=True)
    rows = {f'["{number}"]': "x" for number in range(100)}
    herd.go_on({1: rows, 2: {}, 3: rows})
    assert herd.ledger.step is not None
    assert len(herd.ledger.step.subject.keys) == KEYS_MAX


# ---- members that do not answer ----------------------------------------


def test_a_silent_member_is_waited_for_once_and_again_when_it_has_answered() -> None:
    herd = Herd()
    assert herd.ask(PART, {1: {"": "a"}, 2: {"": "a"}}, ranged=True) == []
    assert herd.ledger.is_open
    herd.ledger.close()  # somebody's patience has ended
    assert herd.ledger.silent == {3}
    assert herd.ledger.saved.position == Position("public.t", ("9",))
    herd.ask(PART, {1: {"": "a"}, 2: {"": "a"}}, ranged=True)
    assert not herd.ledger.is_open
    herd.ledger.take_answer(answer("0", 3, {"": "a"}))
    assert herd.ledger.silent == set()
    herd.ask(PART, {1: {"": "a"}, 2: {"": "a"}}, ranged=True)
    assert herd.ledger.is_open


def test_a_part_waits_while_nobody_else_is_there() -> None:
    herd = Herd()
    for _ in range(20):
        assert herd.ask(PART, {1: {"": "a"}}, ranged=True) == []
        herd.ledger.close()
    assert herd.ledger.saved.position == Position()
    assert herd.ledger.saved.skipped == 0
    for _ in range(2):  # the first one shows that there is somebody again
        herd.ask(PART, {1: {"": "a"}, 2: {"": "a"}}, ranged=True)
        herd.ledger.close()
    assert herd.ledger.saved.position == Position("public.t", ("9",))


def test_the_next_request_concludes_the_last_one() -> None:
    herd = Herd()
    herd.ask(WHOLE, {1: {"": "a"}, 2: {"": "b"}})
    herd.ask(PART, {}, ranged=True)
    assert herd.ledger.step is not None
    assert herd.ledger.step.subject == WHOLE


@pytest.mark.parametrize("outcome", [Outcome.BUSY, Outcome.CHANGED, Outcome.FAILED])
def test_a_part_that_a_member_could_not_read_is_tried_again_and_then_done(outcome: Outcome) -> None:
    herd = Herd()
    for _ in range(TRIES - 1):
        herd.ask(PART, {1: {"": "a"}, 2: outcome, 3: {"": "a"}}, ranged=True)
        assert herd.ledger.saved.position == Position()
    assert herd.ask(PART, {1: {"": "a"}, 2: outcome, 3: {"": "a"}}, ranged=True) == []
    assert herd.ledger.saved.position == Position("public.t", ("9",))
    assert herd.ledger.saved.differences == []


def test_a_part_that_nobody_can_read_is_skipped_and_told() -> None:
    herd = Herd()
    answers = dict.fromkeys(MEMBERS, Outcome.CHANGED)
    concluded = [herd.ask(PART, answers, ranged=True) for _ in range(TRIES)]
    assert [whats(one) for one in concluded] == [[], [], ["skipped"]]
    assert "n1: changed" in concluded[-1][0].note
    assert herd.ledger.saved.skipped == 1
    assert herd.ledger.saved.position == Position("public.t", ("9",))


def test_a_difference_counts_although_others_are_busy() -> None:
    herd = Herd()
    herd.ask(WHOLE, {1: {"": "a"}, 2: {"": "b"}, 3: Outcome.BUSY})
    (one,) = herd.go_on({1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}})
    assert one.difference is not None
    assert one.difference.members == ("n2",)


def test_a_confirmation_is_not_given_up_where_a_scan_is() -> None:
    herd = Herd()
    herd.ask(WHOLE, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}})
    step = herd.ledger.step
    for _ in range(TRIES + 2):
        herd.go_on({1: {"": "a"}, 2: Outcome.BUSY, 3: {"": "a"}})
        assert herd.ledger.step == step
    assert whats(herd.go_on({1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}})) == ["different"]


def test_a_confirmation_that_never_comes_is_told_of_as_skipped() -> None:
    herd = Herd()
    herd.ask(WHOLE, {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}})
    answers: dict[int, Found] = {1: {"": "a"}, 2: Outcome.BUSY, 3: {"": "a"}}
    told = [herd.go_on(answers) for _ in range(CONFIRMING_TRIES)]
    assert whats(told[-1]) == ["skipped"]
    assert herd.ledger.saved.position == Position("public.m", None, "")


def test_keys_that_cannot_be_listed_are_confirmed_as_a_range() -> None:
    herd = Herd()
    versions: dict[int, Found] = {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}}
    herd.ask(PART, versions, ranged=True)
    for _ in range(TRIES):
        herd.go_on(dict.fromkeys(MEMBERS, Outcome.FAILED))
    assert herd.ledger.step == Step(Purpose.CONFIRM, PART, PART)
    assert whats(herd.go_on(versions)) == ["different"]


# ---- differences that are known ----------------------------------------


def with_difference() -> Herd:
    herd = Herd()
    versions: dict[int, Found] = {1: {"": "a"}, 2: {"": "b"}, 3: {"": "a"}}
    herd.ask(WHOLE, versions)
    herd.go_on(versions)
    return herd


def test_a_difference_is_gone_when_those_whom_it_is_about_agree() -> None:
    herd = with_difference()
    before = herd.ledger.saved.last_s
    assert herd.ask(WHOLE, {1: {"": "a"}, 3: {"": "a"}, 2: Outcome.BUSY}, Purpose.RECHECK) == []
    assert len(herd.ledger.saved.differences) == 1
    assert whats(herd.ask(WHOLE, all_same({"": "a"}), Purpose.RECHECK)) == ["mended"]
    assert herd.ledger.saved.differences == []
    assert herd.ledger.saved.last_s == before  # a pass is not put off by it


def test_a_difference_that_is_still_there_is_told_once() -> None:
    herd = with_difference()
    versions: dict[int, Found] = {1: {"": "a"}, 2: {"": "c"}, 3: {"": "a"}}
    assert herd.ask(WHOLE, versions, Purpose.RECHECK) == []
    (one,) = herd.ledger.saved.differences
    assert (one.first_gid, one.gid) == (20, 30)
    herd.ask(WHOLE, versions)
    assert herd.go_on(versions) == []
    assert len(herd.ledger.saved.differences) == 1


def test_a_difference_is_gone_with_its_table() -> None:
    herd = with_difference()
    gone = dict.fromkeys(MEMBERS, Outcome.ABSENT)
    assert whats(herd.ask(WHOLE, gone, Purpose.RECHECK)) == ["mended"]


def test_a_silent_member_does_not_make_its_difference_go() -> None:
    herd = with_difference()
    herd.ask(WHOLE, {1: {"": "a"}, 3: {"": "a"}}, Purpose.RECHECK)
    herd.ledger.close()
    assert len(herd.ledger.saved.differences) == 1


def test_known_differences_are_looked_at_in_turn() -> None:
    herd = with_difference()
    (known,) = herd.ledger.saved.differences
    assert recheck_due(herd.ledger.saved, 100.0, known.checked_s + 9.9) is None
    assert recheck_due(herd.ledger.saved, 100.0, known.checked_s + 10.0) is known
    assert recheck_due(herd.ledger.saved, 1e6, known.checked_s + 299.0) is None
    assert recheck_due(herd.ledger.saved, 1e6, known.checked_s + 300.0) is known


# ---- log and disk ----------------------------------------


def test_a_copy_of_a_request_or_an_answer_changes_nothing() -> None:
    herd = Herd()
    request = Request("r", Purpose.SCAN, PART, 1, 0.0, 1.0, 0.5, True, PART)
    assert herd.ledger.take_request(5, request, MEMBERS) == []
    assert herd.ledger.take_request(6, request, MEMBERS) is None
    for number in MEMBERS:
        herd.ledger.take_answer(answer("r", number, {"": "a"}))
        herd.ledger.take_answer(answer("r", number, {"": "b"}))
    assert herd.ledger.step is None
    assert herd.ledger.take_request(9, request, MEMBERS) is None


def test_a_request_of_an_earlier_pass_moves_nothing() -> None:
    herd = Herd(Saved(number=4, began_s=1.0, position=Position("public.t", ("5",))))
    herd.ask(PART, all_same({"": "a"}), number=3, ranged=True)
    assert herd.ledger.saved.position == Position("public.t", ("5",))
    assert herd.ledger.saved.number == 4


def test_a_member_that_knows_nothing_yet_goes_on_where_the_others_are() -> None:
    herd = Herd(Saved())
    herd.ask(PART, all_same({"": "a"}), number=7, ranged=True)
    assert (herd.ledger.saved.number, herd.ledger.saved.position) == (
        7,
        Position("public.t", ("9",)),
    )


def test_a_scan_has_its_turn_after_each_recheck() -> None:
    herd = with_difference()
    assert not herd.ledger.rechecked
    herd.ask(WHOLE, all_same({"": "a"}), Purpose.RECHECK)
    assert herd.ledger.rechecked
    herd.ask(PART, all_same({"": "a"}), ranged=True)
    assert not herd.ledger.rechecked


def test_what_is_saved_is_read_again() -> None:
    saved = with_difference().ledger.saved
    assert msgspec.json.decode(msgspec.json.encode(saved), type=Saved) == saved


def messages() -> Iterator[Request | Answer]:
    yield Request("r", Purpose.SCAN, PART, 1, 0.5, 1.5, 0.75, True, PART)
    yield Request("r", Purpose.RECHECK, Subject(Kind.ROWS, "t", keys=('["\\u0000ä"]',)), 1, 0, 1, 0)
    yield Answer("r", 2, "n2", Outcome.READ, {'["1"]': "ab"}, 5, 0.5)
    yield Answer("r", 2, "n2", Outcome.FAILED, note="57014")


@pytest.mark.parametrize("message", list(messages()))
def test_messages_travel_as_markers_that_are_for_nobody(message: Request | Answer) -> None:
    marker = encode_message(message, b"0" * 16)
    (read,) = iter_entries(encode_entry(marker))
    assert isinstance(read, Marker)
    assert decode_message(read) == message
    assert "n1" not in read.names


@pytest.mark.parametrize("names", [(), ("n1",), (ADDRESS,), ("n1", "{}"), (ADDRESS, "{}")])
def test_other_markers_are_none_of_ours(names: tuple[str, ...]) -> None:
    assert decode_message(Marker(b"0" * 16, names)) is None


# ---- pace ----------------------------------------


def test_parts_are_spread_over_the_time_that_a_pass_has() -> None:
    saved = Saved(began_s=1000.0, last_s=1000.0)
    assert due_s(saved, 600.0, 10, 0.0) == 1060.0
    saved.last_s = 1300.0
    assert due_s(saved, 600.0, 10, 0.0) == 1330.0
    saved.last_s = 5000.0  # late: as fast as its share allows
    assert due_s(saved, 600.0, 10, 2.5) == 5002.5


@pytest.mark.parametrize("share", [0.5, 2.0, 50.0, 100.0])
def test_work_and_rest_are_in_the_proportion_of_the_share(share: float) -> None:
    rng = random.Random(share)
    for _ in range(100):
        work_s = rng.uniform(0.1, 5.0)
        together_s = work_s + rest_s(work_s, share)
        assert work_s / together_s <= share / 100 + 1e-9


def test_a_pass_is_over_in_time_whatever_the_parts_are() -> None:
    rng = random.Random(3)
    for _ in range(50):
        parts, interval_s = rng.randint(1, 400), rng.uniform(100, 1e6)
        saved = Saved(began_s=0.0, last_s=0.0)
        for done in range(parts):
            saved.last_s = due_s(saved, interval_s, parts - done, 0.0)
        assert saved.last_s <= interval_s * (1 + 1e-9)


def test_parts_that_are_left_are_counted() -> None:
    extent = [("a", 12_000.0, 2), ("b", 0.0, 1), ("c", 5_000.0, 0)]
    assert parts_left(extent, Position(), 5_000) == 1 + (3 + 2) + (1 + 1) + 1
    assert parts_left(extent, Position("a", None, ""), 5_000) == 1 + 2 + 1
    assert parts_left([], Position(), 5_000) == 1


def test_parts_are_as_long_as_a_fraction_of_a_second_allows() -> None:
    assert rows_next(ROWS_MAX, 0.01) == ROWS_MAX
    assert rows_next(5_000, 1.0) == 500
    assert rows_next(100, 60.0) == 50
    assert rows_next(500, 0.0) == 1_000


def test_names_follow_each_other_by_their_bytes() -> None:
    assert first_behind(["b", "A", "ä"], "") == "A"
    assert first_behind(["b", "A", "ä"], "b") == "ä"
    assert first_behind(["b"], "b") is None
