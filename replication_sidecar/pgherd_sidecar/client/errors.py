"""Errors of the command line: one line that says what to do, and a non-zero exit status.

Exit statuses: 0 done; 1 ``verify`` or ``check`` found a difference; 2 it could not be done (the
same status that click uses for a wrong command line).
"""

import errno
import json
import re
import sys
from pathlib import Path
from typing import IO, Any

import click

COULD_NOT = 2
_TELLING = ("text", "reason", "error")
"""Fields of a structured log line that are worth a place in an error."""
_COMPLAINT = re.compile(r"\b(FATAL|PANIC|ERROR|CRITICAL|error|critical)\b")


class HerdError(click.ClickException):
    """Something the user has to act on. The message is one line: what is wrong, what to do."""

    exit_code = COULD_NOT

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message as one line on stderr."""
        text = " ".join(self.message.split())
        print(f"pgherd: {text}", file=file or sys.stderr)


def disk_full(path: Path | str) -> HerdError:
    """The error for a device without space."""
    return HerdError(f"disk full: make room on the device of {path}, then try again")


def from_os_error(error: OSError) -> HerdError:
    """Turn a failed system call into a line for the user."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(error.filename or "the herd")
    subject = f"{error.filename}: " if error.filename else ""
    return HerdError(f"{subject}{error.strerror or error}")


def last_words(log: str) -> str:
    """Return the last complaint in a program's output, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    complaints = [line for line in lines if _COMPLAINT.search(line)]
    return _readable(next(reversed(complaints or lines), "it said nothing"))


def _readable(line: str) -> str:
    """Make a structured log line a sentence: the event, its text, the exception's last line."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict) or "event" not in fields:
        return line
    exception = str(fields.get("exception", "")).strip().rpartition("\n")[2].strip()
    parts = [str(fields["event"]), *(str(fields.get(name, "")) for name in _TELLING), exception]
    return ": ".join(dict.fromkeys(part for part in parts if part))


def progress(text: str) -> None:
    """Tell the human what is going on; stdout stays free for the answer."""
    print(text, file=sys.stderr, flush=True)
