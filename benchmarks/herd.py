"""A herd of pgherd nodes, reached only through its command line.

Starts and asks; of the herd's directory it reads the sidecars' logs only, for the trouble that
nothing else tells of. Called by the demo and the benchmarks. What survives is the herd itself.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.commands import last_line
from benchmarks.errors import BenchmarkError
from benchmarks.trouble import Logs

Capture = Literal["native", "sql", "auto"]
"""Of rows: by the native module, in SQL, or by the module where it is installed."""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as ``pgherd local status`` shows it."""

    name: str
    state: str
    dsn: str
    app_dsn: str
    reason: str = ""
    """Why it does not take writes."""
    gid: int = 0
    """Up to here its database goes."""
    proposer: str = ""
    """Who orders the log, as far as it knows."""
    capture: str = ""
    """How its rows are captured: ``native`` or ``sql``."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table at the position where the nodes were compared."""

    name: str
    identical: bool
    rows: dict[str, int | None]
    """By node; None where the table is missing."""
    checksums: dict[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``pgherd local verify`` found."""

    identical: bool
    gid: int
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Herd:
    """The herd in one directory.

    Attributes:
        program: The ``pgherd`` command; this installation's own if empty.
    """

    directory: Path
    program: str = ""
    _logs: Logs = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logs", Logs(lambda: sidecar_logs(self.directory)))
        self._logs.pop()  # of a herd that is resumed: what was before is no business of ours

    def up(
        self,
        *,
        port_base: int | None = None,
        quiet: bool = False,
        every: int | None = None,
        capture: Capture | None = None,
        nodes: int | None = None,
        timeout_s: int | None = None,
    ) -> None:
        """Start the herd, or resume it, and return when every node takes writes.

        Args:
            port_base: The first port; the command's default if None.
            quiet: Do not pass the command's progress lines on.
            every: One of so many transactions carries a fingerprint; as it was, or the command's
                default, if None.
            capture: How rows are captured; as it was, or the command's default, if None.
            nodes: How many; the command's default if None.
            timeout_s: How many seconds it may take; the command's default if None.

        Raises:
            BenchmarkError: It does not capture natively though it should.
            BenchmarkError: It did not come up; carries the command's own line.
        """
        given = {
            "--port-base": port_base,
            "--fingerprint-every": every,
            "--capture": "auto" if capture == "native" else capture,
            "--nodes": nodes,
            "--timeout": timeout_s,
        }
        options = [
            word
            for name, value in given.items()
            if value is not None
            for word in (name, str(value))
        ]
        command = self._command("up", *options)
        heard: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                # One line behind: the last one of a failure becomes our own error line.
                if heard and not quiet:
                    print(f"  {heard[-1]}", file=sys.stderr)
                heard.append(line.rstrip())
        if process.returncode != 0:
            raise BenchmarkError(reason("\n".join(heard)))
        if heard and not quiet:
            print(f"  {heard[-1]}", file=sys.stderr)
        if capture == "native" and any(one.capture != "native" for one in self.members()):
            raise BenchmarkError(
                "rows are not captured natively: run scripts/setup native, whose module has to be "
                "of this version"
            )

    def members(self) -> tuple[Member, ...]:
        """Return the nodes in the order of their numbers.

        Raises:
            BenchmarkError: There is no herd in the directory.
        """
        status: dict[str, Any] = json.loads(self._run("status", "--json"))
        return tuple(
            Member(
                name=member["name"],
                state=member["state"],
                dsn=member["dsn"],
                app_dsn=member["app_dsn"],
                reason=member.get("reason") or "",
                gid=member.get("gid") or 0,
                proposer=member.get("proposer") or "",
                capture=member.get("capture") or "",
            )
            for member in status["members"]
        )

    def ailing(self) -> str:
        """Return which nodes do not take writes and why; empty if all do.

        Raises:
            BenchmarkError: There is no herd in the directory.
        """
        ill = [member for member in self.members() if member.state != "primary"]
        return "; ".join(f"{one.name} is {one.state}: {one.reason or 'no reason'}" for one in ill)

    def verify(self) -> Verdict:
        """Compare every replicated table on all nodes at one and the same GID.

        Raises:
            BenchmarkError: The comparison could not be made.
        """
        done = self._call("verify", "--json")
        if done.returncode not in (0, 1):
            raise BenchmarkError(f"verify: {reason(done.stderr)}")
        found: dict[str, Any] = json.loads(done.stdout)
        return Verdict(
            identical=found["identical"],
            gid=found["gid"],
            tables=tuple(_table(table) for table in found["tables"]),
        )

    def require_no_trouble(self) -> None:
        """Look into the sidecars' logs for what has come since the last time.

        Raises:
            BenchmarkError: A member has diverged, or a sidecar crashed, even if all is well now.
        """
        found = self._logs.pop()
        if found:
            raise BenchmarkError(f"a sidecar's log tells of trouble: {found[0]}")

    def kill(self, name: str) -> None:
        """SIGKILL all processes of a node.

        Raises:
            BenchmarkError: The command failed.
        """
        self._run("kill", name, "--process", "node")

    def start(self, name: str) -> None:
        """Start a node, and return when it takes writes.

        Raises:
            BenchmarkError: It did not come up.
        """
        self._run("start", name)

    def rebuild(self, name: str, *, source: str) -> None:
        """Replace a node's database by a copy of another's; return when it takes writes.

        Raises:
            BenchmarkError: It failed.
        """
        self._run("rebuild", name, "--from", source)

    def destroy(self) -> None:
        """Stop the herd and remove its directory.

        Raises:
            BenchmarkError: The command failed.
        """
        self._run("destroy")

    def _run(self, verb: str, *arguments: str) -> str:
        done = self._call(verb, *arguments)
        if done.returncode != 0:
            raise BenchmarkError(f"pgherd local {verb}: {reason(done.stderr)}")
        return done.stdout

    def _call(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(verb, *arguments), capture_output=True, text=True, check=False
        )

    def _command(self, verb: str, *arguments: str) -> Sequence[str]:
        return [
            self.program or pgherd_program(),
            "local",
            verb,
            "--dir",
            str(self.directory),
            *arguments,
        ]


def sidecar_logs(directory: Path) -> Iterator[Path]:
    """Return the logs of a herd's sidecars; none where there is no herd."""
    link = directory / "herd"  # where its account can't enter the directory
    home = link.readlink() if link.is_symlink() else directory
    return home.glob("*/sidecar.log")


def reason(stderr: str) -> str:
    """Return the command's own error line without its name."""
    return last_line(stderr).removeprefix("pgherd: ").removeprefix("Error: ")


def _table(table: dict[str, Any]) -> Table:
    present = {name: node for name, node in table["nodes"].items() if node is not None}
    return Table(
        name=table["table"],
        identical=table["identical"],
        rows={name: node["rows"] if node else None for name, node in table["nodes"].items()},
        checksums={name: node["checksum"] for name, node in present.items()},
    )


def pgherd_program() -> str:
    """Return the path of the ``pgherd`` command, this interpreter's own before any other.

    Raises:
        BenchmarkError: It is not installed.
    """
    beside = Path(sys.executable).parent / "pgherd"
    found = str(beside) if beside.exists() else shutil.which("pgherd")
    if found is None:
        raise BenchmarkError("the pgherd command is not installed: run make setup")
    return found
