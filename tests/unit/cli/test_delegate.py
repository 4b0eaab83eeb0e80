"""Root hands a command over to the account that owns the herd, in a copy of its own process."""

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pgherd_sidecar.local import runtime

ACCOUNT = "nobody"
PROGRAM = f"""
import json, os, pwd, sys, time
from pathlib import Path
import click
from pgherd_sidecar.local import delegate

started_as = os.geteuid()

@click.group()
def main():
    pass

@main.command()
@click.argument("status", type=int)
@click.option("--dir", "directory", type=Path)
@click.option("--word", "words", multiple=True)
def who(status, directory, words):
    if os.geteuid() == 0:
        raise SystemExit(delegate._run_as(pwd.getpwnam({ACCOUNT!r}), directory))
    ids = [*os.getresuid(), *os.getresgid()]
    facts = [started_as, ids, os.getgroups(), os.getcwd(), os.environ["HOME"], words]
    print(json.dumps(facts), flush=True)
    if status == 99:
        time.sleep(600)
    raise SystemExit(status)

main()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The program that hands itself over; its exit status and directory are to follow."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    if runtime.interpreter_for(pwd.getpwnam(ACCOUNT)) != runtime.OWN:
        pytest.skip(f"{ACCOUNT} can't run {sys.executable}")
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py"), "who", "--dir", str(tmp_path)]


def test_the_process_is_the_accounts_for_good(command: list[str], tmp_path: Path) -> None:
    words = ["--word", "a b", "--word=c"]
    done = subprocess.run([*command, "7", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    account = pwd.getpwnam(ACCOUNT)
    ids = [account.pw_uid] * 3 + [account.pw_gid] * 3
    groups = os.getgrouplist(ACCOUNT, account.pw_gid)
    started_as, *facts = json.loads(done.stdout)
    assert started_as == 0
    assert facts == [ids, groups, str(tmp_path), account.pw_dir, ["a b", "c"]]


def test_a_signal_reaches_it(command: list[str]) -> None:
    with subprocess.Popen([*command, "99"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 256 - signal.SIGTERM
