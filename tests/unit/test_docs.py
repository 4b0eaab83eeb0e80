"""What the pages say of the repository is there: links, commands, programs, and figures' sources.

Whether a promise is kept is for other tests; these keep the pages from pointing at nothing.
"""

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pgherd_operator.kubectl import main as plugin
from pgherd_sidecar.cli.main import main as pgherd

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "operator/*.md", "charts/*.md")
    for page in REPOSITORY.glob(pattern)
)

#: Pages on which a duration or a rate would be a result; on the others it is a setting.
BOASTFUL = [
    REPOSITORY / name
    for name in ("README.md", "docs/architecture.md", "docs/limits.md", "docs/performance.md")
]

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_MEASURED = re.compile(r"\d ?(?:tps|ms|µs|us|microseconds|milliseconds|MB/s|times faster)\b")
_SOURCE = re.compile(r"`make bench`|`python -m benchmarks\.")
_PATH = re.compile(r"(?:\w+/)+[\w*-]+\.(?:py|sql|md|toml)|(?:\w+/){2,}")
_SOURCE_ROOT = REPOSITORY / "replication_sidecar"
_ROOTS = (REPOSITORY, _SOURCE_ROOT, _SOURCE_ROOT / "pgherd_sidecar", REPOSITORY / "docs")


_TESTS = re.compile(
    r"`(tests/(?:\w+/)+)?(test_\w+\.py)(?:::(\w+))?(?: -k (\"[^\"]*\"|\w+))?`(?:: `(\w+)`)?"
)
_ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)


def name_of(page: Path) -> str:
    """The page's path inside the repository."""
    return str(page.relative_to(REPOSITORY))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(page: Path) -> Iterator[str]:
    """Every piece of code of a page: in backticks, and line by line where it is set apart."""
    text = page.read_text()
    for block in _FENCE.findall(text):
        yield from block.splitlines()[1:-1]
    rest = _FENCE.sub("", text)
    yield from (line.strip() for line in rest.splitlines() if line.startswith("    "))
    yield from _CODE.findall(rest)


def commands_of(page: Path, program: str) -> list[list[str]]:
    """The words that follow a program's name where the page shows it being called."""
    found = []
    pattern = re.compile(rf"(?:^|(?<!kubectl)(?<!helm install)[ (]){program} ([^|)#\"]*)")
    for line in code(page):
        called = pattern.search(line.replace("\\|", "/"))
        if called:
            found.append(shlex.split(called[1]))
    return found


def targets() -> set[str]:
    """The targets of the Makefile."""
    makefile = (REPOSITORY / "Makefile").read_text()
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def options_of(command: click.Command) -> set[str]:
    """The long options of a command."""
    return {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name[:2] == "--"
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_the_text_exist(page: Path) -> None:
    text = page.read_text()
    drawn = " ".join(block for block in _FENCE.findall(text) if block.startswith("```mermaid"))
    named = {
        path
        for piece in _CODE.findall(_FENCE.sub("", text)) + re.split(r"<br/>|\s", drawn)
        for path in _PATH.findall(piece)
        if piece.startswith(path)
    }
    missing = [path for path in sorted(named) if not any([*root.glob(path)] for root in _ROOTS)]
    # A node's directory is described, too; it is not part of the repository.
    assert [path for path in missing if not path.startswith("sidecar/")] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_pgherd_exist_with_their_options(page: Path) -> None:
    for words in commands_of(page, "pgherd"):
        command: click.Command = pgherd
        for word in words:
            if not isinstance(command, click.Group):
                break
            if command.invoke_without_command and word.startswith("-"):
                break
            assert word in command.commands, f"pgherd {' '.join(words)}"
            command = command.commands[word]
        used = {option.strip("[]").split("=")[0] for option in words if "--" in option}
        assert used <= options_of(command), f"pgherd {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_the_plugin_of_kubectl_exist(page: Path) -> None:
    for name, *_ in filter(None, commands_of(page, "kubectl pgherd")):
        assert name in plugin.commands


def test_the_glossary_has_each_word_once_in_the_order_of_the_alphabet() -> None:
    text = (REPOSITORY / "docs" / "glossary.md").read_text()
    words = re.findall(r"^\| (\w[^|]*) \| ", text, re.MULTILINE)[1:]
    assert words == sorted(set(words), key=str.casefold)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    named = {words[0] for words in commands_of(page, "make") if words}
    assert named <= targets()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_to_be_run_exist(page: Path) -> None:
    named = re.findall(r"python -m (\w+(?:\.\w+)*)", page.read_text())
    assert [name for name in named if importlib.util.find_spec(name) is None] == []


def _file_of(folder: str, name: str) -> Path:
    """The file of a test, as pages name it."""
    return REPOSITORY / (folder or "tests/integration/") / name


@pytest.mark.parametrize("page", ["guarantees.md", "hazards.md", "limits.md"])
def test_named_tests_exist_and_are_selected_by_what_is_said(page: str) -> None:
    named = _TESTS.findall((REPOSITORY / "docs" / page).read_text())
    assert len(named) > 20
    for folder, file, *selections in named:
        text = _file_of(folder, file).read_text()
        for word in re.findall(r"\w+", " ".join(selections)):
            assert word == "or" or word in text, f"{file}: {word}"


def test_every_guarantee_names_the_test_that_shows_it() -> None:
    rows = _ROW.findall((REPOSITORY / "docs" / "guarantees.md").read_text())
    promises = [row.split(" | ") for row in rows if row.strip().startswith("**")]
    assert len(promises) > 20
    assert [cells[0] for cells in promises if len(cells) != 3 or "test_" not in cells[2]] == []


def _tests_of(file: Path) -> dict[str, bool]:
    """The names of a file's tests, and whether all of a test is long."""
    tree = ast.parse(file.read_text())
    all_long = any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "pytestmark"
        and "mark.long" in ast.unparse(node.value)
        for node in tree.body
    )
    return {
        node.name: all_long or "pytest.mark.long" in map(ast.unparse, node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_guarantee_is_shown_in_the_gate() -> None:
    """All that stands before "long:" is in `make test`, at least in part."""
    rows = _ROW.findall((REPOSITORY / "docs" / "guarantees.md").read_text())
    for row in (row for row in rows if row.strip().startswith("**")):
        shown_by = row.split(" | ")[2].partition("long:")[0]
        shown = _TESTS.findall(shown_by)
        assert shown or "`make simulate`" in shown_by, f"nothing in the gate shows: {row}"
        for folder, name, _, chosen, _ in shown:
            tests = _tests_of(_file_of(folder, name))
            for word in chosen.strip('"').split(" or "):
                # A word may also choose parameters, of whatever test.
                named = [test for test in tests if word in test] or [*tests]
                assert not all(tests[test] for test in named), f"{name} -k {word} is long: {row}"


@pytest.mark.parametrize("page", BOASTFUL, ids=name_of)
def test_a_page_with_figures_names_the_command_that_made_them(page: Path) -> None:
    text = page.read_text()
    if _MEASURED.search(text):
        assert _SOURCE.search(text)


def test_the_page_of_commands_names_every_command() -> None:
    local = pgherd.commands["local"]
    assert isinstance(local, click.Group)
    named = [words for words in commands_of(REPOSITORY / "docs" / "commands.md", "pgherd") if words]
    assert {words[1] for words in named if words[0] == "local" and words[1:]} == set(local.commands)
    shown = {name for name, command in pgherd.commands.items() if not command.hidden}
    assert {words[0] for words in named} == shown


def test_the_index_lists_every_page() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(_LINK.findall(index))
