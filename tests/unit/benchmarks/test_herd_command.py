"""The herd behind the pgherd command, played here by a script that says what it would say."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks import herd as herd_module
from benchmarks.errors import BenchmarkError
from benchmarks.herd import Herd, Member
from benchmarks.workload.summary import comparison


class Command:
    """A stand-in for the pgherd command, with fixed words and exit status."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "pgherd"
        self.asked = directory / "asked"

    def says(self, *, out: str = "", err: str = "", status: int = 0) -> None:
        for name, text in (("out", out), ("err", err)):
            (self.path.parent / name).write_text(text)
        here = self.path.parent
        self.path.write_text(
            f'#!/bin/sh\necho "$@" >> {self.asked}\n'
            f"cat {here}/out\ncat {here}/err >&2\nexit {status}\n"
        )
        self.path.chmod(0o755)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    stand_in = Command(tmp_path)
    monkeypatch.setattr(herd_module, "pgherd_program", lambda: str(stand_in.path))
    return stand_in


def test_the_demo_says_how_to_have_other_ports(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = "port 7501 is taken by postgres (pid 7): stop it or choose another --port-base"
    command.says(err=f"pgherd: {taken}\n", status=1)
    monkeypatch.setattr(sys, "argv", ["demo", "--dir", str(tmp_path / "demo")])
    with pytest.raises(BenchmarkError, match=r"pid 7\): stop it or `make demo PORT_BASE=8500`"):
        demo.main()


def test_the_demo_prints_commands_that_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "Ann's herd"
    demo.print_how_to_go_on([Member("n1", "primary", "", "")], Herd(directory))
    lines = [line for line in capsys.readouterr().out.splitlines() if "--dir" in line]
    assert [shlex.split(line)[-1] for line in lines] == [str(directory)] * 3


def verify_output(**checksums: str | None) -> str:
    nodes = {
        name: None if checksum is None else {"rows": 7, "checksum": checksum, "columns": "x"}
        for name, checksum in checksums.items()
    }
    identical = len(set(checksums.values())) == 1
    table = {"table": "public.t", "identical": identical, "nodes": nodes}
    return json.dumps({"identical": identical, "gid": 42, "tables": [table], "differences": []})


def test_up_passes_progress_on_and_asks_for_its_directory_and_ports(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    command.says(err="n1: starting\nn1: takes writes\n")

    Herd(Path("/somewhere")).up(port_base=9000)

    assert command.asked.read_text() == "local up --dir /somewhere --port-base 9000\n"
    assert capfd.readouterr().err == "  n1: starting\n  n1: takes writes\n"


def test_up_that_fails_is_its_own_last_line_said_once(
    command: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    command.says(err="n1: starting\npgherd: port 7501 is taken: choose --port-base\n", status=3)

    with pytest.raises(BenchmarkError, match=r"^port 7501 is taken: choose --port-base$"):
        Herd(Path("/somewhere")).up()

    assert "taken" not in capfd.readouterr().err


def test_members_are_read_from_the_status(command: Command) -> None:
    member = {"name": "n1", "state": "primary", "dsn": "a", "app_dsn": "b", "gid": 3}
    command.says(out=json.dumps({"cluster_id": "c", "members": [member]}))

    (found,) = Herd(Path("/somewhere")).members()

    assert (found.name, found.state, found.dsn, found.app_dsn) == ("n1", "primary", "a", "b")


def test_a_node_that_takes_no_writes_is_named_with_its_reason(command: Command) -> None:
    well = {"name": "n1", "state": "primary", "dsn": "a", "app_dsn": "b", "reason": None}
    ill = {**well, "name": "n2", "state": "diverged", "reason": "a row was missing"}
    command.says(out=json.dumps({"members": [well, ill]}))

    assert Herd(Path("/somewhere")).ailing() == "n2 is diverged: a row was missing"


def test_nodes_that_agree_are_one_line_with_the_checksum(command: Command) -> None:
    command.says(out=verify_output(n1="abc", n2="abc"))

    verdict = Herd(Path("/somewhere")).verify()

    assert verdict.identical
    first, last = comparison(verdict)
    assert first.split() == ["public.t", "7", "rows", "abc", "identical", "on", "n1,", "n2"]
    assert last == "1 tables at GID 42: identical on all nodes"


def test_nodes_that_differ_are_a_verdict_and_no_failure(command: Command) -> None:
    command.says(out=verify_output(n1="abc", n2=None), status=1)

    verdict = Herd(Path("/somewhere")).verify()

    assert not verdict.identical
    assert comparison(verdict)[1:] == [
        "    n1: 7 rows, abc",
        "    n2: missing",
        "1 tables at GID 42: the nodes DIFFER",
    ]


def test_a_comparison_that_could_not_be_made_is_a_failure(command: Command) -> None:
    command.says(err="pgherd: n2 does not run\n", status=2)

    with pytest.raises(BenchmarkError, match="verify: n2 does not run"):
        Herd(Path("/somewhere")).verify()
