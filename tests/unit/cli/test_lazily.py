"""A command starts fast: it imports what it needs, and nothing of what other commands need."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from pgherd_sidecar.lazily import lazily
from pgherd_sidecar.local import herd

HEAVY = {"aiohttp", "cryptography", "pglast", "psycopg", "structlog", "uvloop", "msgspec"}
"""What the sidecar needs, or a command that makes something."""
PROGRAM = """
import sys
from pgherd_sidecar.cli.main import main
main(sys.argv[1:], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


def imported_by(*arguments: str) -> set[str]:
    """The packages that a command has imported when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


@pytest.mark.parametrize("group", [(), ("local",)])
def test_help_needs_no_more_than_click(group: tuple[str, ...]) -> None:
    assert not imported_by(*group, "--help") & {*HEAVY, "asyncio", "pydantic"}


def test_status_needs_nothing_of_the_sidecar(tmp_path: Path) -> None:
    directory = tmp_path.resolve()
    herd.save(herd.new_herd(directory, nodes=3, port_base=41000, postgres_bin=Path("/nowhere")))
    program = f"""
import sys
from pathlib import Path
from pgherd_sidecar.cli.localcommands import show
show(Path({str(directory)!r}), as_json=True)
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert '"n3"' in done.stdout
    packages = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert "pydantic" in packages
    assert not packages & HEAVY


def test_a_module_is_executed_at_its_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lazily_tested"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("import sys\nsys.executed_by_test = True\nVALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    with lazily():
        module = importlib.import_module("lazily_tested.one")
    assert not hasattr(sys, "executed_by_test")
    assert module.VALUE == 7
    assert sys.executed_by_test  # type: ignore[attr-defined]
    del sys.executed_by_test  # type: ignore[attr-defined]
    assert sys.modules["lazily_tested.one"] is module is sys.modules["lazily_tested"].one


def test_a_module_that_is_not_there_is_missed_at_once() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named"), lazily():
        importlib.import_module("pgherd_sidecar.cli.nowhere")
