"""Our SQL means the same whatever standard_conforming_strings a session has.

PL/pgSQL reads a function's body under the settings of the session that calls it first.
"""

import re
from pathlib import Path

import pgherd_sidecar.pg
import pytest

_FILES = sorted((Path(pgherd_sidecar.pg.__file__).parent / "sql").glob("*.sql"))

#: Comments, quoted names, literals with what continues them on the next line. Dollar quotes are
#: looked into like any other text, since they hold the source of functions.
_TOKEN = re.compile(
    r"""
      --[^\n]*
    | "(?:[^"]|"")*"
    | \b[eE]'(?:\\.|''|[^'\\])*'(?:\s*\n\s*'(?:\\.|''|[^'\\])*')*
    | (?P<plain>'(?:''|[^'])*')
    """,
    re.VERBOSE | re.DOTALL,
)


def plain_literals_with_backslash(text: str) -> list[str]:
    plain = (match["plain"] for match in _TOKEN.finditer(text))
    return [literal for literal in plain if literal is not None and "\\" in literal]


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name)
def test_no_plain_literal_holds_a_backslash(file: Path) -> None:
    assert plain_literals_with_backslash(file.read_text()) == []


def test_there_are_files_to_look_at() -> None:
    assert len(_FILES) > 20


@pytest.mark.parametrize(
    "text",
    [
        r"SELECT 'a\d'",
        r"$$ SELECT x ~ '\mword\M' $$",
        r"""SELECT E'\n', "it's", 'b\s'""",
        r"EXECUTE 'SELECT ''a\d'''",
        "-- isn't it\nSELECT 'a\\d'",
    ],
)
def test_backslash_is_found(text: str) -> None:
    assert len(plain_literals_with_backslash(text)) == 1


@pytest.mark.parametrize("text", [r"SELECT E'\'\\d'", "SELECT E'a\\n'\n  'b\\n'", r"-- 'a\d'"])
def test_escape_literals_may_hold_one(text: str) -> None:
    assert plain_literals_with_backslash(text) == []
