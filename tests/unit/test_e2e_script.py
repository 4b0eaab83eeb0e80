"""The end-to-end tests as a part of ``make test``: where there is no node they are left out."""

import shutil
import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts" / "e2e"
_NODE = "4b6c1d2e3f40"
_DOCKER = f"""
case "$1 $2" in
"images "*) echo {_NODE};;
"image inspect") [ "$3" = {_NODE} ];;
esac
"""


def run(
    repository: Path, docker: str, pytest_program: str = "exit 9", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the script in a repository with programs of ours."""
    script = repository / "scripts" / "e2e"
    programs = repository / "bin"
    pytest_file = repository / ".venv" / "bin" / "pytest"
    texts = {
        programs / "docker": docker,
        repository / "scripts" / "setup": "",
        pytest_file: pytest_program,
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    shutil.copy(_SCRIPT, script)
    return subprocess.run(
        [str(script)],
        env={"PATH": f"{programs}:/usr/bin:/bin"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("docker", "environment"),
    [
        ("exit 1", {}),
        ("", {}),
        (_DOCKER, {"PGHERD_E2E": "none"}),
        (_DOCKER, {"PGHERD_KIND_NODE_IMAGE": "kindest/node:of-another-version"}),
    ],
    ids=["no docker", "no node", "left out", "not that node"],
)
def test_a_machine_without_a_node_says_so(
    tmp_path: Path, docker: str, environment: dict[str, str]
) -> None:
    done = run(tmp_path, docker, **environment)
    assert done.returncode == 0, done.stderr
    assert "NO END-TO-END TESTS" in done.stdout


def test_the_node_that_is_there_is_used(tmp_path: Path) -> None:
    done = run(tmp_path, _DOCKER, 'echo "$PGHERD_KIND_NODE_IMAGE"')
    assert done.stdout == f"{_NODE}\n", done.stderr


def test_a_test_that_fails_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, _DOCKER, "exit 1").returncode == 1
