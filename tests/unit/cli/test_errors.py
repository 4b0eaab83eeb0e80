"""Every error is one line that says what to do."""

import errno
import io

import pytest
from click.testing import CliRunner
from pgherd_sidecar.cli.main import main
from pgherd_sidecar.client.errors import COULD_NOT, HerdError, from_os_error, last_words


def test_an_error_is_one_line_on_stderr() -> None:
    out = io.StringIO()
    HerdError("the server said:\n\tno\n").show(out)
    assert out.getvalue() == "pgherd: the server said: no\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_so(code: int) -> None:
    message = from_os_error(OSError(code, "whatever", "/herd/n1/pgherd.conf")).message
    assert message.startswith("disk full: make room on the device of /herd/n1/pgherd.conf")


def test_any_other_failed_call_names_its_file() -> None:
    error = OSError(errno.EACCES, "Permission denied", "/herd")
    assert from_os_error(error).message == "/herd: Permission denied"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "it said nothing"),
        ("starting\nready\n\n", "ready"),
        ("FATAL: no room\nLOG: shut down\n", "FATAL: no room"),
        ("ERROR: first\nERROR: second\nbye", "ERROR: second"),
        ('{"level": "error", "event": "log.torn", "pos": 1}\n{"level": "info"}', "log.torn"),
        (
            '{"level": "error", "event": "process.crashed", "error": "no room"}',
            "process.crashed: no room",
        ),
        (
            '{"event": "process.crashed", "exception": "Traceback\\n  x\\nValueError: no"}',
            "process.crashed: ValueError: no",
        ),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_last_words_are_the_last_complaint_or_the_last_line(log: str, words: str) -> None:
    assert last_words(log) == words


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["local", "up", "--nodez", "3"], "local up --help"),
        (["local", "kill", "n1", "--dir", "d"], "Missing option '--process'"),
        (["local", "up", "--dir", ""], "it is empty: name the herd's directory"),
        (["status", "--dir", ""], "it is empty: name the herd's directory"),
        (["local", "kill", "n1", "--dir", "d", "--process", "x"], "'x' is not one of"),
        (["local", "up", "--scrub-interval", "inf"], "inf is no number that can be counted with"),
        (["local", "up", "--scrub-share", "nan"], "nan is no number that can be counted with"),
        (["local", "up", "--timeout", "nan"], "nan is no number that can be counted with"),
        (["local", "launch"], "No such command 'launch'"),
    ],
)
def test_a_wrong_command_line_is_answered_with_one_line(arguments: list[str], line: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == COULD_NOT
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
