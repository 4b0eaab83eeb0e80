"""Started as root: do the work as the unprivileged account that owns the herd.

PostgreSQL refuses to run as root, and root should not follow links in a directory that another
account can write. So root only prepares and removes the directory itself, and runs the very same
command again as the account; all else in this package runs as one account, whoever it is. Where
the account can run this Python, a copy of this process does so: starting another one takes longer
than most commands.

The account may not be able to reach the directory that was asked for (below /root, or in another
account's temporary directory). Then the herd lives in a directory of its own below /var/lib/pgherd,
and the directory that was asked for holds a symbolic link to it, named ``herd``. It is no directory
for temporary files: systems remove what nobody has touched there for a month, and a cold table is
a file that nobody touches.
"""

import os
import pwd
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.lazily import lazily
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.directory import (
    create_directory,
    remove_if_empty,
    require_empty_or_claimed,
)

with lazily():
    from pgherd_sidecar.local import runtime

DEFAULT_USER = "postgres"
_LINK = "herd"
_FALLBACK_PARENT = Path("/var/lib/pgherd")
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def is_root() -> bool:
    """Say whether this process has to hand over to an unprivileged account."""
    return os.geteuid() == 0


def require_no_other(user: str | None) -> None:
    """Check that an ordinary account asked for no account but itself.

    Raises:
        HerdError: it did; only root can become another account.
    """
    if user is not None and user != pwd.getpwuid(os.geteuid()).pw_name:
        raise HerdError(f"only root can run a herd as {user}: leave --user out or use sudo")


def up(directory: Path, user: str | None) -> NoReturn:
    """Run ``up`` as ``user`` or, for an existing herd, as its owner."""
    directory = directory.resolve()
    home = home_of(directory)
    if herd.is_herd(home):
        account = _owner(home)
        if user not in (None, account.pw_name):
            raise HerdError(
                f"the herd in {directory} belongs to {account.pw_name}: leave --user out"
            )
        raise SystemExit(_run_as(account, home))
    account = _account(DEFAULT_USER if user is None else user)
    before = directory.stat() if directory.exists() else None
    missing = _create_open(directory)
    if home == directory:  # else another `up` has just prepared it
        home = _prepare(directory, account)
    try:
        status = _run_as(account, home)
    finally:  # the copy of this process that has become the account leaves it to root
        if is_root() and not herd.is_herd(home) and not any(home.iterdir()):
            _unprepare(directory, home, missing, before)
    raise SystemExit(status)


def provide(wanted: Path, directory: Path) -> None:
    """Make a directory that the account which owns the herd in ``directory`` is to write into.

    One that is there already is left as it is.
    """
    if wanted.exists():
        return
    home = home_of(directory.resolve())
    herd.load(home)
    account = _owner(home)
    wanted.mkdir(mode=0o700)
    os.chown(wanted, account.pw_uid, account.pw_gid, follow_symlinks=False)


def command(directory: Path) -> NoReturn:
    """Run any other command as the herd's owner."""
    home = home_of(directory)
    herd.load(home)
    status = _run_as(_owner(home), home)
    if status == 0 and not herd.is_herd(home):  # destroyed
        _unprepare(directory, home, [directory], None)
    raise SystemExit(status)


def home_of(directory: Path) -> Path:
    """Return where the herd lives that was asked for in a directory."""
    link = directory / _LINK
    return link.readlink() if link.is_symlink() else directory


def _owner(home: Path) -> pwd.struct_passwd:
    uid = (home / herd.HERD_FILE).stat().st_uid
    try:
        account = pwd.getpwuid(uid)
    except KeyError as error:
        raise HerdError(f"the herd in {home} belongs to uid {uid}, which does not exist") from error
    return _account(account.pw_name)


def _account(user: str) -> pwd.struct_passwd:
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise HerdError(f"there is no account {user}: choose one with --user") from error
    if account.pw_uid == 0:
        raise HerdError(f"PostgreSQL does not run as root: choose another account than {user}")
    return account


def _create_open(directory: Path) -> list[Path]:
    """Create a directory and its parents, which all accounts can enter, whatever root's umask is.

    Return those that did not exist, deepest first.
    """
    missing = create_directory(directory)
    for made in missing:
        made.chmod(0o755)
    return missing


def _prepare(directory: Path, account: pwd.struct_passwd) -> Path:
    """Give the directory to the account; return where the herd will live."""
    require_empty_or_claimed(directory)
    if runtime.can_enter(account, directory.parent):
        os.chown(directory, account.pw_uid, account.pw_gid)
        directory.chmod(0o700)
        return directory
    _create_open(_FALLBACK_PARENT)
    home = Path(tempfile.mkdtemp(prefix="herd-", dir=_FALLBACK_PARENT))
    os.chown(home, account.pw_uid, account.pw_gid)
    (directory / _LINK).symlink_to(home)
    progress(f"{account.pw_name} cannot reach {directory}: the herd's files are in {home}")
    return home


def _unprepare(
    directory: Path, home: Path, missing: list[Path], before: os.stat_result | None
) -> None:
    """Undo ``_prepare`` after the account has removed its files.

    Args:
        directory: that was asked for.
        home: where the herd's files were to be.
        missing: the directories that were made, deepest first.
        before: how the directory was, if it was there.
    """
    if home != directory:
        remove_if_empty([home, _FALLBACK_PARENT])
        (directory / _LINK).unlink()
    elif before is not None:
        os.chown(directory, before.st_uid, before.st_gid)
        directory.chmod(stat.S_IMODE(before.st_mode))
    remove_if_empty(missing)


def _run_as(account: pwd.struct_passwd, home: Path) -> int:
    """Run this command line as ``account`` on the herd in ``home``; return its exit status."""
    interpreter = runtime.interpreter_for(account)
    early: list[int] = []  # what came before there was a child to pass it on to
    before = {
        number: signal.signal(number, lambda number, _frame: early.append(number))
        for number in _FORWARDED
    }
    if interpreter == runtime.OWN:
        child = os.fork()
        if child == 0:
            for number, handler in before.items():
                signal.signal(number, handler)
            for came in early:
                signal.raise_signal(came)
            _go_on_as(account, home)
    else:
        child = _started(interpreter, account, home)
    # A Ctrl-C reaches the child by itself: it belongs to the terminal's process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = os.pidfd_open(child)
    for number in _FORWARDED:
        signal.signal(number, lambda number, _frame: _forward(process, number))
    for came in early:
        _forward(process, came)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _forward(process: int, number: int) -> None:
    """Send a signal to that process and no other, which may have ended already."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _go_on_as(account: pwd.struct_passwd, home: Path) -> NoReturn:
    """Run the command in this process, which becomes the account's for good."""
    os.chdir(home)
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.environ.update(_environment(account))
    program = click.get_current_context().find_root()
    program.command.main(_arguments(home), prog_name=program.info_name)
    raise SystemExit


def _started(interpreter: "runtime.Interpreter", account: pwd.struct_passwd, home: Path) -> int:
    """Run the command by another Python; return its process."""
    return subprocess.Popen(
        [*interpreter.command, "-m", "pgherd_sidecar.cli.main", *_arguments(home)],
        env=os.environ | interpreter.environment | _environment(account),
        cwd=home,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=os.getgrouplist(account.pw_name, account.pw_gid),
    ).pid


def _environment(account: pwd.struct_passwd) -> dict[str, str]:
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}


def _arguments(home: Path) -> list[str]:
    """The command line that click has parsed, with absolute paths."""
    context = click.get_current_context()
    arguments: list[str] = []
    words: list[str] = []
    within: click.Context | None = context
    while within is not None and within.parent is not None:  # the outermost is the program
        arguments.insert(0, str(within.info_name))
        within = within.parent
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name == "directory":
            value = home
        elif isinstance(value, Path):
            value = value.resolve()
        if value is None or value is False:
            continue
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            words += map(str, values)
        elif value is True:
            arguments.append(parameter.opts[0])
        else:
            arguments += [word for one in values for word in (parameter.opts[0], str(one))]
    return [*arguments, "--", *words] if words else arguments  # a word may begin like an option
