"""``pgherd psql``: which node, as whom, and that psql's own arguments reach it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from pgherd_sidecar.cli.main import main
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import herd, psql
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.node import NodeState
from psycopg.conninfo import conninfo_to_dict


@pytest.fixture
def description(tmp_path: Path) -> Herd:
    found = herd.new_herd(
        tmp_path.resolve(), nodes=2, witnesses=1, port_base=41000, postgres_bin=Path("/nowhere")
    )
    herd.save(found)
    return found


def states(description: Herd, *states: str) -> list[NodeState]:
    return [
        NodeState(member, state, None, None, None, True, True, {})
        for member, state in zip(description.databases, states, strict=True)
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (None, ())),
        (("n2",), ("n2", ())),
        (("n2", "-c", "SELECT 1"), ("n2", ("-c", "SELECT 1"))),
        (("-At", "-c", "SELECT 1"), (None, ("-At", "-c", "SELECT 1"))),
    ],
)
def test_a_first_word_that_is_no_option_is_a_node(
    words: Sequence[str], expected: tuple[str | None, Sequence[str]]
) -> None:
    assert psql.split(words) == expected


def test_the_default_is_the_first_node_that_takes_writes(description: Herd) -> None:
    assert psql.first_writable(states(description, "recovering", "primary")).name == "n2"
    assert psql.first_writable(states(description, "primary", "primary")).name == "n1"


def test_without_one_it_says_how_the_nodes_are(description: Herd) -> None:
    with pytest.raises(HerdError, match=r"n1 is stopped, n2 is secondary.*name a node to read"):
        psql.first_writable(states(description, "stopped", "secondary"))


@pytest.mark.parametrize(("superuser", "role"), [(False, "app"), (True, "postgres")])
def test_the_password_is_in_a_file(description: Herd, superuser: bool, role: str) -> None:
    member = description.member("n2")
    found = psql.surroundings(description, member, superuser=superuser)
    assert (found["PGUSER"], found["PGPORT"], found["PGDATABASE"]) == (role, "41002", "app")
    assert found["PGPASSFILE"] == str(description.node(member).passfile)
    secrets = {description.app_password, description.superuser_password}
    assert not secrets & set(found.values())


def test_the_connection_string_that_is_shown_holds_no_password(tmp_path: Path) -> None:
    directory = tmp_path.resolve() / "a herd?&"
    found = herd.new_herd(directory, nodes=1, port_base=41000, postgres_bin=Path("/nowhere"))
    member = found.members[0]
    dsn = found.silent_dsn(member)
    assert found.app_password not in dsn
    assert conninfo_to_dict(dsn) == {
        "user": "app",
        "host": "127.0.0.1",
        "port": "41001",
        "dbname": "app",
        "passfile": str(found.node(member).passfile),
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["n9"], "unknown node n9: this herd has n1, n2, w1"),
        (["w1"], "w1 is a witness and has no database: choose one of n1, n2"),
        (["n2"], "PostgreSQL of n2 does not run: `pgherd local start n2` starts it"),
        ([], "no node takes writes"),
    ],
)
def test_what_cannot_be_is_one_line(description: Herd, words: list[str], complaint: str) -> None:
    done = CliRunner().invoke(main, ["psql", *words, "--dir", str(description.directory)])
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_options_of_psql_reach_it(description: Herd, tmp_path: Path) -> None:
    """A stand-in for psql tells its arguments; a session is root's if root begins it."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_in = programs / "psql"
    stand_in.write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    program = f"""
import os
from pathlib import Path
from pgherd_sidecar.local import binaries, psql
from pgherd_sidecar.cli.main import main
binaries.find = lambda _, remedy: Path({str(programs)!r})
psql.named = lambda description, name: description.member(name)  # its server does not run
os.geteuid = lambda: 0
main()
"""
    words = ["n2", "-At", "-c", "SELECT '--dir'", "--set", "x=1", "-f", "some file"]
    done = subprocess.run(
        [sys.executable, "-c", program, "psql", *words, "--dir", str(description.directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == words[1:], done.stderr
