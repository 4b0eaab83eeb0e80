"""Root hands a command over to the account that owns the herd, in a copy of its own process."""

import contextlib
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import delegate, runtime

ACCOUNT = "nobody"
PROGRAM = f"""
import json, os, pwd, sys, time
from pathlib import Path
import click
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import delegate

started_as = os.geteuid()

@click.group()
def main():
    pass

@main.command()
@click.argument("status", type=int)
@click.option("--dir", "directory", type=Path)
@click.option("--word", "words", multiple=True)
@click.argument("rest", nargs=-1)
def who(status, directory, words, rest):
    if os.geteuid() == 0:
        raise SystemExit(delegate._run_as(pwd.getpwnam({ACCOUNT!r}), directory))
    ids = [*os.getresuid(), *os.getresgid()]
    facts = [started_as, ids, os.getgroups(), os.getcwd(), os.environ["HOME"], words, rest]
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
    words = ["--word", "a b", "--word=c", "--", "-1", "--word"]
    done = subprocess.run([*command, "7", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    account = pwd.getpwnam(ACCOUNT)
    ids = [account.pw_uid] * 3 + [account.pw_gid] * 3
    groups = os.getgrouplist(ACCOUNT, account.pw_gid)
    started_as, *facts = json.loads(done.stdout)
    assert started_as == 0
    assert facts == [ids, groups, str(tmp_path), account.pw_dir, ["a b", "c"], ["-1", "--word"]]


def test_a_signal_reaches_it(command: list[str]) -> None:
    with subprocess.Popen([*command, "99"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 256 - signal.SIGTERM


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pwd.struct_passwd:
    """Whom root's herd is to belong to; its files have a place below ``tmp_path``, too."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another account")
    monkeypatch.setattr(delegate, "_FALLBACK_PARENT", tmp_path / "state" / "pgherd")
    tmp_path.chmod(0o755)
    found = pwd.getpwnam(ACCOUNT)
    if not runtime.can_enter(found, tmp_path):
        pytest.skip(f"{ACCOUNT} can't reach {tmp_path}")
    return found


@pytest.fixture
def narrow() -> Iterator[None]:
    """A umask that leaves nothing to other accounts."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def up(
    monkeypatch: pytest.MonkeyPatch, directory: Path, done: Callable[[Path], int] = lambda _: 0
) -> Path:
    """Have root bring a herd up; return where its files are to be.

    Args:
        directory: that is asked for.
        done: what the account does in place of the command.
    """
    homes: list[Path] = []

    def run_as(_: pwd.struct_passwd, home: Path) -> int:
        homes.append(home)
        return done(home)

    monkeypatch.setattr(delegate, "_run_as", run_as)
    with pytest.raises(SystemExit):
        delegate.up(directory, ACCOUNT)
    return homes[0]


def found(home: Path) -> int:
    (home / "herd.json").touch()
    return 0


@pytest.mark.usefixtures("narrow")
def test_the_parents_that_root_makes_are_open_whatever_its_umask(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd, tmp_path: Path
) -> None:
    directory = tmp_path / "lib" / "pgherd" / "herd"
    assert up(monkeypatch, directory, found) == directory
    assert runtime.can_enter(account, directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o755


@pytest.mark.usefixtures("narrow")
def test_a_herd_that_the_account_cannot_reach_is_kept_for_good_elsewhere(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    home = up(monkeypatch, closed / "herd", found)
    assert home.parent == tmp_path / "state" / "pgherd"
    assert runtime.can_enter(account, home)
    assert delegate.home_of(closed / "herd") == home


def test_a_herd_that_was_not_made_elsewhere_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    up(monkeypatch, closed / "herd")
    assert list(closed.iterdir()) == []
    assert not (tmp_path / "state" / "pgherd").exists()


def test_the_place_elsewhere_is_not_for_temporary_files() -> None:
    assert not delegate._FALLBACK_PARENT.is_relative_to("/tmp")
    assert not delegate._FALLBACK_PARENT.is_relative_to("/var/tmp")


def fails(_: Path) -> int:
    raise HerdError("there is no Python for the account")


@pytest.mark.parametrize("done", [lambda _: 2, fails])
def test_a_directory_of_which_no_herd_was_made_is_its_owners_as_before(
    monkeypatch: pytest.MonkeyPatch,
    account: pwd.struct_passwd,
    tmp_path: Path,
    done: Callable[[Path], int],
) -> None:
    directory = tmp_path / "alice"
    directory.mkdir()
    directory.chmod(0o2750)
    os.chown(directory, 12345, 23456)
    with contextlib.suppress(HerdError):
        up(monkeypatch, directory, done)
    after = directory.stat()
    assert (after.st_uid, after.st_gid) == (12345, 23456)
    assert stat.S_IMODE(after.st_mode) == 0o2750
    with contextlib.suppress(HerdError):
        up(monkeypatch, tmp_path / "new", done)
    assert not (tmp_path / "new").exists()
