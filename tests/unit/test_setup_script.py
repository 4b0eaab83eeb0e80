"""``scripts/setup`` in a checkout that was copied, or has another name than before."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_environment_of_another_checkout_is_made_anew(tmp_path: Path) -> None:
    checkout = tmp_path / "pgherd"
    for name in ("scripts", "replication_sidecar", "operator", "spark", ".venv/bin"):
        (checkout / name).mkdir(parents=True)
    shutil.copy2(ROOT / "scripts" / "setup", checkout / "scripts")
    (checkout / "pyproject.toml").touch()
    made = f"command = /usr/bin/python3 -m venv --clear {checkout}/.venv"
    (checkout / ".venv" / "pyvenv.cfg").write_text(f"{made}\n")
    (checkout / ".venv" / "bin" / "python").write_text("#!/bin/sh\n")
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    assert "creating .venv" not in said(checkout)
    renamed = checkout.rename(tmp_path / "other")
    assert "creating .venv with" in said(renamed)
    assert made not in (renamed / ".venv" / "pyvenv.cfg").read_text()


def said(checkout: Path) -> str:
    """What it says; there is nothing to install in the end, which is an error of pip's."""
    return subprocess.run(
        [checkout / "scripts" / "setup"], check=False, capture_output=True, text=True
    ).stderr
