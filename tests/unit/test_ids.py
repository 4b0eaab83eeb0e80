"""Every number that code, SQL, tests or pages cite has one definition in the repository's pages.

Statements of the log's protocol, rules of correctness and hazards have numbers such as K3, BD7 or
H24. A citation is such a word in a comment, in a docstring, or in the text of a page. The simulator
also names in literals what a planted bug breaks.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = ("protocol.md", "correctness.md", "hazards.md")
#: What looks like a citation and is another's name for something.
OTHERS = {
    "P50": "a percentile",
    "P95": "a percentile",
    "P99": "a percentile",
    "G0": "a phenomenon of Adya's, as G1 and G2 are",
}

_DEFINITION = re.compile(r"^(?:- \*\*|\| )([A-Z]{1,2}\d{1,2})(?:\*\*| \|)", re.MULTILINE)
_ID = re.compile(r"(?<![\w\"'.`$/-])([A-Z]{1,2}\d{1,2})(?![\w\"'(`/-])")
_LITERAL = re.compile(r"^([A-Z]{1,2}\d{1,2})(?=$|:)")
_RANGE = re.compile(r"\b([A-Z]{1,2})(\d{1,2})-(?:\1)?(\d{1,2})\b")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_SQL_COMMENT = re.compile(r"--.*")


def definitions() -> Counter[str]:
    """How often each number is defined."""
    return Counter(
        name
        for page in PAGES
        for name in _DEFINITION.findall((REPOSITORY / "docs" / page).read_text())
    )


DEFINED = definitions()
PREFIXES = {name.rstrip("0123456789") for name in DEFINED}
_PERHAPS = re.compile(rf"\b(?:{'|'.join(PREFIXES)})\d")
"""A file without it cites nothing, and need not be taken apart, which takes long."""


def prose_of_python(text: str) -> Iterator[str]:
    """Comments and docstrings of a module; a test's docstring often is nothing but a number."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def literals_of_python(text: str) -> Iterator[str]:
    """Literals that are a number, or begin with one and a colon."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _LITERAL.findall(node.value)


def prose_of(path: Path) -> Iterator[str]:
    """The text of a file that people read, as far as it may cite a number."""
    text = path.read_text()
    if not _PERHAPS.search(text):
        return
    if path.suffix == ".py":
        yield from prose_of_python(text)
        if path.parent.name == "simulation":
            yield from literals_of_python(text)
    elif path.suffix == ".sql":
        yield from _SQL_COMMENT.findall(text)
    else:
        yield _CODE.sub("", text)


def cited_in(text: str) -> Iterator[str]:
    """The numbers that a text cites; of a range, all."""
    for prefix, first, last in _RANGE.findall(text):
        yield from (f"{prefix}{number}" for number in range(int(first), int(last) + 1))
    yield from _ID.findall(_RANGE.sub("", text))


def citations() -> dict[str, list[str]]:
    """Where each number is cited."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in ("replication_sidecar", "operator", "spark", "tests", "benchmarks", "docs"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.suffix in (".py", ".sql", ".md"):
                for text in prose_of(path):
                    for name in cited_in(text):
                        found[name].append(str(path.relative_to(REPOSITORY)))
    return found


def test_a_number_is_defined_once() -> None:
    assert {name for name, times in DEFINED.items() if times > 1} == set()


def test_every_number_that_is_cited_is_defined() -> None:
    missing = {
        name: sorted(set(places))
        for name, places in citations().items()
        if name.rstrip("0123456789") in PREFIXES and name not in DEFINED and name not in OTHERS
    }
    assert missing == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[K2, F1-F3] and S1-S2", ["F1", "F2", "F3", "S1", "S2", "K2"]),
        ("it is a new member (C18, H24); V6.", ["C18", "H24", "V6"]),
        ("BD10: as `C99` says, b'C1', N1, U01(1", ["BD10", "N1"]),
    ],
)
def test_what_is_taken_for_a_citation(text: str, names: list[str]) -> None:
    assert list(cited_in(_CODE.sub("", text))) == names
