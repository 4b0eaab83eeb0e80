"""The parts of the benchmark of commands that need no server."""

from benchmarks import ddl
from benchmarks.ddl import Cost


def costs(cpu_ms: float, wait_ms: float) -> dict[str, Cost]:
    return dict.fromkeys(ddl.KINDS, Cost(cpu_ms, wait_ms))


def test_medians_are_of_cpu_and_of_wait() -> None:
    turns = [Cost(1, 7), Cost(3, 5), Cost(2, 60)]
    assert ddl.medians({"COMMENT": turns}) == {"COMMENT": Cost(2, 7)}


def test_what_was_not_measured_has_no_line() -> None:
    found = {name: {"COMMENT": Cost(1, 2)} for name in (ddl.PLAIN, ddl.HERD)}
    assert len(ddl.table(found).splitlines()) == 3


def test_each_kind_has_a_line_and_plain_stands_beside_the_herd() -> None:
    lines = ddl.table({ddl.PLAIN: costs(1, 2), ddl.HERD: costs(10, 14)}).splitlines()
    assert len(lines) == 2 + len(ddl.KINDS)
    assert lines[2] == "| CREATE TABLE | 1.0 | 10.0 | 2.0 | 14.0 |"


def test_another_version_is_what_the_ratios_are_taken_by() -> None:
    found = {ddl.PLAIN: costs(1, 2), ddl.HERD: costs(10, 14), ddl.OTHER: costs(40, 28)}
    last = ddl.table(found).splitlines()[-1]
    assert last == "| 100 commands, one message | 1.0 | 10.0 | 2.0 | 14.0 | 40.0 | 0.25 | 0.50 |"
