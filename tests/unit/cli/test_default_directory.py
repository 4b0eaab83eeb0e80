"""Where a herd is if no ``--dir`` says so."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from pgherd_sidecar.cli.main import main
from pgherd_sidecar.cli.shared import options


@pytest.fixture(autouse=True)
def _ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ann")
    for name in ("XDG_STATE_HOME", "PGHERD_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_it_is_below_the_home_of_an_ordinary_account() -> None:
    assert options.default_directory() == Path("/home/ann/.local/state/pgherd/herd")


@pytest.mark.parametrize(
    ("state", "expected"),
    [("/state", "/state/pgherd/herd"), ("state", "/home/ann/.local/state/pgherd/herd")],
)
def test_the_account_may_keep_state_elsewhere(
    monkeypatch: pytest.MonkeyPatch, state: str, expected: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert options.default_directory() == Path(expected)


def test_roots_can_be_entered_by_other_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/root/state")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert options.default_directory() == Path("/var/lib/pgherd/herd")


@pytest.mark.parametrize("command", [["local", "status"], ["status"], ["members"], ["psql"]])
def test_a_variable_names_it_for_every_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setenv("PGHERD_DIR", str(tmp_path))
    done = CliRunner().invoke(main, command)
    assert f"{tmp_path.resolve()} is not a herd directory" in done.stderr
    assert "give the --dir of one" in done.stderr


def test_an_option_goes_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGHERD_DIR", "/elsewhere")
    done = CliRunner().invoke(main, ["local", "status", "--dir", str(tmp_path)])
    assert f"{tmp_path.resolve()} is not a herd directory" in done.stderr


def test_an_empty_option_is_no_default() -> None:
    done = CliRunner().invoke(main, ["local", "destroy", "--dir", ""])
    assert "it is empty: name the herd's directory" in done.stderr


def test_a_socket_and_a_directory_are_one_too_many(tmp_path: Path) -> None:
    arguments = ["members", "--dir", str(tmp_path), "--admin", "/run/admin.sock"]
    done = CliRunner().invoke(main, arguments)
    assert "Give either --dir or --admin." in done.stderr
