"""The structure of the rooms, where import-linter can't say it: ``pyproject.toml`` has the rest.

Reads the source and imports nothing of it, so an import inside a function counts too, and a
module that cannot be imported here is judged all the same.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = {
    "pgherd_sidecar": REPOSITORY / "replication_sidecar",
    "pgherd_operator": REPOSITORY / "operator",
    "pgherd_spark": REPOSITORY / "spark",
}
MODULES_OF_A_ROOM = 14

#: The standard library as far as it neither does IO, nor tells the time, nor starts anything.
PURE = set(
    """
    array bisect collections dataclasses enum functools heapq itertools json math operator random re
    struct sys typing uuid zlib
    """.split()  # noqa: SIM905 - words are easier to read than a list of strings
)
#: Dependencies that may be used by all: msgspec only turns bytes into values and back.
ANYWHERE = {"msgspec"}

DEPENDENCIES = {
    "core": ANYWHERE,
    "env": ANYWHERE | {"structlog"},
    "pg": ANYWHERE | {"psycopg", "pglast"},
    "importing": ANYWHERE | {"psycopg", "pglast"},
    "subscribing": ANYWHERE | {"psycopg", "structlog"},
    "tables": ANYWHERE | {"psycopg"},
    "client": ANYWHERE | {"click", "cronsim", "pydantic"},
    "pki": ANYWHERE | {"cryptography"},
}


def module_name(source: Path, path: Path) -> str:
    """The dotted name of a module of a package below ``source``."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(source, path): path
    for package, source in PACKAGES.items()
    for path in sorted((source / package).rglob("*.py"))
}
ROOMS = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def room_of(module: str) -> str:
    """The package that a module lies in; a package is its own room."""
    return module if module in ROOMS else module.rpartition(".")[0]


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def modules_of(folder: str) -> Iterator[tuple[str, Path]]:
    """The modules of a folder of the sidecar, at any depth."""
    prefix = f"pgherd_sidecar.{folder}."
    found = [(name, path) for name, path in MODULES.items() if f"{name}.".startswith(prefix)]
    assert found, f"no modules in {folder}"
    yield from found


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_is_small_and_says_what_it_is_for(room: str) -> None:
    inside = [name for name in MODULES if name not in ROOMS and room_of(name) == room]
    assert len(inside) <= MODULES_OF_A_ROOM, "cut the room in two, by an idea"
    assert ast.get_docstring(ast.parse(MODULES[room].read_text()))


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_do_not_import_each_other_in_a_circle(package: str) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        if module.split(".")[0] == package:
            rooms = {room_of(one) for one in imports(path) if one.split(".")[0] == package}
            graph[room_of(module)] |= rooms - {room_of(module)}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        module: {imported for imported in imports(path) if imported in MODULES} - {module}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_classes_of_a_package_have_one_name(package: str) -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        if module.split(".")[0] == package:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(module)
    doubles = {name: found for name, found in places.items() if len(found) > 1}
    assert not doubles, "say in the names what differs"


def test_the_core_does_no_io() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of("core")
        for imported in imports(path)
        if imported.split(".")[0] not in PURE | ANYWHERE | {"pgherd_sidecar"}
    ]
    assert not wrong


@pytest.mark.parametrize("folder", DEPENDENCIES)
def test_lower_folders_depend_on_few_libraries(folder: str) -> None:
    allowed = DEPENDENCIES[folder] | {"pgherd_sidecar"} | sys.stdlib_module_names
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of(folder)
        for imported in imports(path)
        if imported.split(".")[0] not in allowed
    ]
    assert not wrong


def test_benchmarks_do_not_import_the_product() -> None:
    # What knew its insides could not compare it fairly with others; but a job's command is mostly
    # the start of Spark, which the others do not have, and none of them has a scrub. Instructions
    # are counted of one session, whose sidecar is a stand-in.
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports {imported}"
        for path in (REPOSITORY / "benchmarks").rglob("*.py")
        if path.name not in ("instructions.py", "jobs.py", "scrub.py")
        for imported in imports(path)
        if imported.split(".")[0] == "pgherd_sidecar"
    ]
    assert not wrong
