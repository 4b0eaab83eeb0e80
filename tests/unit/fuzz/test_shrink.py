"""A failing case loses all that it does not need to fail."""

from fuzz.case import Case, Step
from fuzz.generate import case as generated
from fuzz.shrink import cut_after, shrink


def said(case: Case) -> list[str]:
    """Every statement of a case."""
    return [statement for step in case.steps for statement in step.statements]


def test_only_what_is_needed_stays() -> None:
    steps = tuple(Step("n1", (f"SELECT {n}",)) for n in range(20))
    needed = {"SELECT 3", "SELECT 17"}
    small = shrink(Case("x", steps), lambda case: needed <= set(said(case)))
    assert said(small) == ["SELECT 3", "SELECT 17"]


def test_statements_go_from_within_a_block_and_its_ends_stay() -> None:
    block = ("BEGIN", "SELECT 1", "SELECT 2", "SELECT 3", "COMMIT")
    case = Case("x", (Step("n1", ("SELECT 0",)), Step("n2", block)))
    small = shrink(case, lambda tried: "SELECT 2" in said(tried))
    assert said(small) == ["BEGIN", "SELECT 2", "COMMIT"]


def test_whole_blocks_go_from_a_step_with_several() -> None:
    step = Step("n1", ("SELECT 1", "BEGIN", "SELECT 2", "COMMIT", "SELECT 3"))
    small = shrink(Case("x", (step,)), lambda tried: "SELECT 3" in said(tried))
    assert said(small) == ["SELECT 3"]


def test_no_try_leaves_a_session_in_a_block() -> None:
    def whole(case: Case) -> bool:
        for step in case.steps:
            words = [one.split()[0] for one in step.statements]
            assert words.count("BEGIN") == words.count("COMMIT") + words.count("ROLLBACK") - sum(
                one.startswith("ROLLBACK TO") for one in step.statements
            )
        return len(said(case)) > 12

    drawn = generated(3)
    alone = drawn.with_steps(tuple(one for one in drawn.steps if one.session == ""))
    assert len(said(shrink(alone, whole))) == 13


def test_a_case_that_needs_everything_stays() -> None:
    case = Case("x", (Step("n1", ("SELECT 1", "SELECT 2")), Step("n2", ("SELECT 3",))))
    assert said(shrink(case, lambda tried: len(said(tried)) == 3)) == said(case)


def test_what_came_after_the_failure_is_cut_off() -> None:
    case = Case("x", tuple(Step("n1", (f"SELECT {n}",)) for n in range(5)))
    assert len(cut_after(case, 2).steps) == 2
