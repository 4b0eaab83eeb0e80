"""Runs PostgreSQL's programs, and modules of pgherd's packages, as children of the sidecar.

No child outlives it.

A copy that went on after the death of the sidecar would write into a directory that the next
sidecar is about to remove; so the kernel ends the child with its parent (util-linux' ``setpriv``).
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import IO, Any

_LINES_KEPT = 20
_PROGRESS = re.compile(r"^(\d+)/(\d+) kB")


class ProgramError(Exception):
    """A program failed; the message is its name and its last words."""


async def run_program(
    program: Path,
    *arguments: str,
    stdin: bytes = b"",
    on_line: Callable[[str], None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    beside: Callable[[int], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Run a program to its end; when cancelled, the program is killed first.

    Args:
        program: what to run, with these arguments.
        stdin: what it is given.
        on_line: called in a thread for each line that it prints; what it raises ends the program.
        environment: all of its variables; by default ours, but for Python's and libpq's.
        beside: what is done with its pid while it runs.

    Raises:
        ProgramError: its exit status is not 0.
    """
    child = start_program(program, *arguments, environment=environment)
    talking = asyncio.ensure_future(asyncio.to_thread(_talk, child, stdin, on_line))
    companion = None if beside is None else asyncio.create_task(beside(child.pid))
    try:
        lines = await asyncio.shield(talking)
    finally:
        if companion is not None:
            companion.cancel()
        if not talking.done():
            _kill(child.pid)
            await asyncio.wait({talking})
    if child.returncode != 0:
        raise ProgramError(f"{program.name}: {_last_words(lines)}")


def start_program(
    program: Path,
    *arguments: str,
    output: IO[bytes] | int = subprocess.PIPE,
    dies_by: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program that does not outlive the thread that calls this: the loop's.

    Not by asyncio's own means: uvloop's leave the ends of their pipes open in what the program
    starts, and a server that was started so would seem never to have ended.

    Args:
        program: what to run, with these arguments.
        output: where to what it prints goes.
        dies_by: what the kernel sends it when that thread ends.
        environment: as for ``run``.
    """
    name = dies_by.name.removeprefix("SIG")
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", name, "--", str(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_environment("PG", "PYTHON", "LD_LIBRARY_PATH") if environment is None else environment,
        start_new_session=True,  # a group of its own, with what it starts
    )


def module(name: str) -> tuple[Path, str, str, str]:
    """Return the program, and its first arguments, that runs a module of pgherd's packages."""
    return Path(sys.executable), "-P", "-m", name


def environment_of_modules() -> dict[str, str]:
    """Return our environment without what is meant for libpq.

    Python's variables stay: a copied interpreter finds its packages by them alone
    (``local/runtime.py``).
    """
    return _environment("PG")


def bytes_of(line: str) -> tuple[int, int] | None:
    """Bytes done and in total, if that is what a program tells in a line."""
    match = _PROGRESS.match(line)
    return None if match is None else (int(match[1]) << 10, int(match[2]) << 10)


def end_leftovers(argument: str) -> None:
    """Kill what is left of programs of an earlier sidecar whose command line has this argument.

    The kernel ends a program with its parent, but not what that program has forked: the WAL
    streamer of ``pg_basebackup`` would go on for as long as the partner lives.

    Args:
        argument: how one of the program's arguments begins; it must name what is only ours.
    """
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile, or another account's
            if process.name.isdecimal():
                words = (process / "cmdline").read_bytes().split(b"\0")
                if any(word.startswith(argument.encode()) for word in words):
                    os.kill(int(process.name), signal.SIGKILL)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _talk(
    child: "subprocess.Popen[bytes]", stdin: bytes, on_line: Callable[[str], None]
) -> list[str]:
    """Give the child its input and return the last lines it printed, once it has ended."""
    lines: deque[str] = deque(maxlen=_LINES_KEPT)
    with child:
        assert child.stdin is not None and child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended; its last words say why
                child.stdin.write(stdin)
                child.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            for raw in child.stdout:
                lines.append(raw.decode(errors="replace").strip())
                on_line(lines[-1])
        except BaseException:
            _kill(child.pid)
            raise
    return list(lines)


def _last_words(lines: list[str]) -> str:
    complaints = [line for line in lines if "error" in line.lower() or "FATAL" in line]
    return next(reversed(complaints or [line for line in lines if line]), "it said nothing")


def _environment(*left_out: str) -> dict[str, str]:
    """Our environment without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | {
        "LC_ALL": "C.UTF-8"
    }
