"""``scripts/setup``: what it installs, and in a checkout that was copied or has another name."""

import shutil
import subprocess
from pathlib import Path

import pytest

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


OLD = {"python3": "3.10.6-1~22.04", "postgresql": "14+238"}
NEW = {"python3": "3.12.3-0ubuntu2", "postgresql": "16+257build1"}


@pytest.mark.parametrize(
    ("offered", "has", "installed", "told"),
    [
        (NEW, "3.10", ["python3 python3-venv postgresql postgresql-contrib"], ""),
        (
            OLD | {"python3.11-venv": "3.11.0~rc1-1", "postgresql": "18+287.pgdg22.04+1"},
            "3.10", ["python3.11 python3.11-venv postgresql postgresql-contrib"], "",
        ),
        (
            NEW | {"python3.13-venv": "3.13.0"},
            "3.13", ["python3.13-venv postgresql postgresql-contrib"], "",
        ),
        (OLD, "3.10", [], "Python 3.11 or newer with venv is needed, and apt offers 3.10"),
        (OLD | {"python3": "3.12"}, "3.10", [], "and apt offers 14: add https://apt.postgresql.org"),
        (NEW | {"python3": "3.10"}, "3.13", [], "install python3.13 and python3.13-venv from"),
    ],
)  # fmt: skip
def test_it_installs_nothing_that_does_not_help(
    tmp_path: Path, offered: dict[str, str], has: str, installed: list[str], told: str
) -> None:
    """With a Python that has no venv or is too old, and without PostgreSQL."""
    script = (ROOT / "scripts" / "setup").read_text()
    script = script.replace("/usr/bin/python3 ", "").replace("/usr/lib/postgresql", "/none")
    programs = {
        "apt-get": 'echo "$*" >>apt',
        "env": 'shift; "$@"',
        "sudo": '"$@"',
        "apt-cache": "case $2 in\n"
        + "".join(f"{name}) echo '  Candidate: {has}' ;;\n" for name, has in offered.items())
        + "esac",
        "dpkg-query": "echo ' installed'",
    }
    for version in ("3", "3.14", "3.13", "3.12", "3.11"):
        runs = f"python{has}" == f"python{version}"
        said = f"case $2 in *venv*) exit 1 ;; esac; echo {has}" if runs else "exit 1"
        programs[f"python{version}"] = said
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup").write_text(script)
    for path in (*map(tmp_path.joinpath, programs), tmp_path / "scripts" / "setup"):
        path.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup"], check=False, capture_output=True, text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    asked = (tmp_path / "apt").read_text().splitlines()
    flags = "install -y -qq --no-install-recommends "
    assert [one.removeprefix(flags) for one in asked if one.startswith(flags)] == installed
    assert told in done.stderr
