"""Every event of the logs is on docs/events.md with its level and fields, and none besides."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "events.md"
SOURCES = ("replication_sidecar", "operator", "spark")
LEVELS = {"debug", "info", "warning", "error", "critical"}
#: What is called like a method of a logger: to warn through ``Complaints`` is a warning.
WARNS = "warn"

_ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Name, level and fields of every event that the code logs."""
    for source in SOURCES:
        for path in sorted((REPOSITORY / source).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and (found := event_of(node)) is not None:
                    yield found


def event_of(call: ast.Call) -> tuple[str, str, set[str]] | None:
    """The event that a call logs, None where it is no call of a logger."""
    function, first = call.func, call.args[0] if call.args else None
    if not isinstance(function, ast.Attribute) or not isinstance(first, ast.Constant):
        return None
    whose = ast.unparse(function.value)
    if function.attr in LEVELS and whose in ("log", "_log"):
        level = function.attr
    elif function.attr == WARNS and whose.endswith("complaints"):
        level = "warning"
    else:
        return None
    fields = {"exception" if one.arg == "exc_info" else str(one.arg) for one in call.keywords}
    return str(first.value), level, fields


def test_the_page_has_every_event_with_its_level_and_fields() -> None:
    logged: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, level, fields in calls():
        logged[name, level] |= fields
    told = {
        (name, level): set(re.findall(r"`(\w+)`", fields))
        for name, level, fields in _ROW.findall(PAGE.read_text())
    }
    assert told == logged


def test_a_name_is_a_subject_and_what_happened_to_it() -> None:
    assert [name for name, *_ in calls() if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)] == []
