"""What is captured in which order: commands beside rows, however savepoints mix them."""

import re
from collections.abc import Iterator

import psycopg
import pytest

from .localherd import LocalHerd, home
from .nodes import Connection, Nodes, nodes_of, run, sql_cases

CASES = sql_cases("border_capture")
_BAD = ("needs_rebuild", '"diverged"', '"crashed"')


@pytest.fixture(scope="module")
def nodes(herd: LocalHerd) -> Iterator[Nodes]:
    with nodes_of(herd) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _nobody_stops(herd: LocalHerd) -> Iterator[None]:
    """A quick rebuild would hide that members differed."""
    before = complaints(herd)
    yield
    assert complaints(herd) == before


def complaints(herd: LocalHerd) -> list[str]:
    """Lines of the sidecars' logs that tell of a member that could not go on."""
    lines = [
        line
        for log in sorted(home(herd).glob("*/sidecar.log"))
        for line in log.read_text(errors="replace").splitlines()
    ]
    return [line for line in lines if any(word in line for word in _BAD)]


def messages(text: str) -> list[str]:
    """The messages of a case: each ends with a line that ends in a semicolon."""
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [part.strip() for part in re.split(r"(?<=;)\n", code) if part.strip()]


def play(connection: Connection, text: str) -> str | None:
    """Send a case's messages; the SQLSTATE of the first that fails, after a rollback."""
    for message in messages(text):
        try:
            run(connection, message)
        except psycopg.Error as error:
            run(connection, "ROLLBACK")
            return error.sqlstate
    return None


def tables_of(text: str) -> list[str]:
    found = re.search(r"-- tables: (.*)", text)
    assert found is not None
    return found[1].split(", ")


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_all_members_have_what_the_first_has(nodes: Nodes, text: str) -> None:
    assert play(nodes.app[0], text) == ("0A000" if "\n-- refused" in text else None)
    nodes.equal_rows(*tables_of(text))
