"""Completion by Tab: click's own, by the line that docs/commands.md has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PGHERD = Path(sys.executable).with_name("pgherd")
PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def completed(words: str) -> set[str]:
    """What Tab offers after these words."""
    environment = {
        "_PGHERD_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [PGHERD], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return {line.partition(",")[2] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("pgherd ps", {"psql"}),
        ("pgherd local de", {"destroy"}),
        ("pgherd local status --show", {"--show-passwords"}),
        ("pgherd local kill n1 --process s", {"sidecar"}),
    ],
)
def test_commands_options_and_values_are_completed(words: str, offered: set[str]) -> None:
    assert completed(words) == offered


def test_the_line_of_the_page_of_commands_makes_bash_complete() -> None:
    (line,) = [
        line.strip() for line in PAGE.read_text().splitlines() if "bash_source pgherd" in line
    ]
    done = subprocess.run(
        ["bash", "-c", f"{line}\ncomplete -p pgherd"],
        env=os.environ | {"PATH": f"{PGHERD.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_pgherd_completion pgherd" in done.stdout
