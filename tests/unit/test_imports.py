"""The structure that the package docstrings describe: layers, and a core without IO.

Reads the source and imports nothing of it, so an import inside a function counts too, and a
module that cannot be imported here is judged all the same.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "pgherd_sidecar"
REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "replication_sidecar"

#: What each layer may import besides itself; the layers' names are folders of the package.
LAYERS = {
    "core": set[str](),
    "env": {"core"},
    "pg": {"core"},
    "agent": {"core", "env", "pg"},
    "importing": set[str](),
    "cli": {"agent", "env", "importing"},
}

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
}


def module_name(path: Path) -> str:
    """The dotted name of a module of the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / PACKAGE).rglob("*.py"))}


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


def layer_of(module: str) -> str:
    """The layer of a module of the package, "" for the package's own face."""
    return [*module.split("."), ""][1]


def modules_of(layer: str) -> Iterator[tuple[str, Path]]:
    """The modules of a layer."""
    found = [(name, path) for name, path in MODULES.items() if layer_of(name) == layer]
    assert found, f"no modules in {layer}"
    yield from found


def test_every_folder_of_the_package_is_a_layer() -> None:
    assert {layer_of(module) for module in MODULES} - {""} == LAYERS.keys()


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    allowed = LAYERS[layer] | {layer, ""}
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of(layer)
        for imported in imports(path)
        if imported.split(".")[0] == PACKAGE and layer_of(imported) not in allowed
    ]
    assert not wrong


def test_the_core_does_no_io() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of("core")
        for imported in imports(path)
        if imported.split(".")[0] not in PURE | ANYWHERE | {PACKAGE}
    ]
    assert not wrong


@pytest.mark.parametrize("layer", DEPENDENCIES)
def test_lower_layers_depend_on_few_libraries(layer: str) -> None:
    allowed = DEPENDENCIES[layer] | {PACKAGE} | sys.stdlib_module_names
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of(layer)
        for imported in imports(path)
        if imported.split(".")[0] not in allowed
    ]
    assert not wrong


def test_the_command_line_knows_only_the_configuration_of_the_sidecar() -> None:
    # It speaks to a running sidecar through the admin API, like any other tool; what can be done to
    # a stopped one only is a module of its own.
    modules = ("config", "defaults", "bootstrap")
    known = {f"{PACKAGE}.agent", *(f"{PACKAGE}.agent.{name}" for name in modules)}
    wrong = [
        f"{module} imports {imported}"
        for module, path in modules_of("cli")
        for imported in imports(path)
        if layer_of(imported) == "agent"
        and imported.split(".")[0] == PACKAGE
        and imported not in known
    ]
    assert not wrong


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        module: {imported for imported in imports(path) if imported in MODULES} - {module}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_benchmarks_do_not_import_the_product() -> None:
    # What knew its insides could not compare it fairly with others; but a job's command is mostly
    # the start of Spark, which the others do not have, and none of them has a scrub.
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports {imported}"
        for path in (REPOSITORY / "benchmarks").rglob("*.py")
        if path.name not in ("jobs.py", "scrub.py")
        for imported in imports(path)
        if imported.split(".")[0] == PACKAGE
    ]
    assert not wrong
