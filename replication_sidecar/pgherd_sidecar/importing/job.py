"""An import that nobody sits in front of: what the operator has run in a pod beside the herd.

The order says what it shall come to. What may pass by itself (a source or a herd that does not
answer, a source that can't be taken over as it is) is told to whoever asks, and tried again. An
attempt at the cut-over that has failed is not repeated: it would stop writes at the source once
more. How it ended goes to the container's termination message.
"""

import asyncio
import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import psycopg

from pgherd_sidecar.importing import cutover
from pgherd_sidecar.importing.ends.connections import Destination, SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed, TakenOver, Unfit
from pgherd_sidecar.importing.ends.target import ImportStanding, Target
from pgherd_sidecar.importing.engine import Engine, Ways

REFUSED = 3
"""Exit status of a run that must not be repeated as it is."""
_ENDED_BY_SIGNAL = 128 + signal.SIGTERM
_AGAIN_S, _LOOK_S, _LINE_S = 10.0, 2.0, 10.0
_ERROR_LENGTH = 3000
"""A termination message has 4096 bytes."""
_HUNG_UP = (
    ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError,
)  # fmt: skip
"""What is no question."""
_PHASES = {
    "begun": "Definitions", "copy": "Copying", "keys": "Indexes", "follow": "Following",
    "abort": "Aborting", "done": "Finishing",
}  # fmt: skip


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member with a database, and how the superuser connects to it."""

    name: str
    dsn: str


class ImportOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator wants done; ``pgherd_operator.objects.imports`` writes it.

    Attributes:
        goal: to follow the source; to do that and then cut over; or to remove all of it.
        dsn_file: holds the connection string of the source, and may change.
        jobs: tables at a time.
        outcome_file: where to tell how it ended.
    """

    goal: Literal["follow", "cut-over", "abort"]
    members: tuple[Address, ...]
    dsn_file: str
    jobs: int
    progress_port: int = 7804
    outcome_file: str = "/dev/termination-log"


@dataclass
class Told:
    """How the import is, for whoever asks: no names and no rows, since anybody may.

    But for ``error`` and ``reasons``, which name what is in the way.

    Attributes:
        phase: a word of the resource's status.
        line: of progress.
        error: what has stopped it; it is tried again.
        reasons: why the source can't be taken over, as things are.
    """

    phase: str = "Looking"
    line: str = ""
    error: str = ""
    reasons: tuple[str, ...] = ()
    tables: int = 0
    tables_done: int = 0
    rows: int = 0
    bytes: int = 0
    bytes_of_tables: int = 0
    lag_s: float | None = None
    lag_bytes: int | None = None


class Job:
    """One run."""

    def __init__(self, order: ImportOrder) -> None:
        self.told = Told()
        self._order = order
        self._printed = 0.0

    async def run(self) -> tuple[dict[str, Any], int]:
        """Work until the goal is reached, or until it must not be tried again.

        Returns:
            What to tell of it, and the exit status.
        """
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                try:
                    return await self._attempt(), 0
                except Unfit as error:
                    self._stopped("", tuple(" ".join(str(one).split()) for one in error.reasons))
                except (TakenOver, _AttemptFailed) as error:
                    return {"error": str(error)[:_ERROR_LENGTH]}, REFUSED
                except ImportFailed as error:
                    self._stopped(str(error), ())
                await asyncio.sleep(_AGAIN_S)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _stopped(self, error: str, reasons: tuple[str, ...]) -> None:
        for line in reasons or (error,):
            _log(line)
        self.told.error, self.told.reasons, self.told.line = error, reasons, ""

    async def _attempt(self) -> dict[str, Any]:
        ways = self._ways()
        try:
            match self._order.goal:
                case "follow":
                    await Engine(ways).run()
                    raise ImportFailed("following has ended")
                case "cut-over":
                    return await self._cut_over(ways)
                case "abort":
                    return await self._abort(ways)
        finally:
            await ways.target.close()

    async def _cut_over(self, ways: Ways) -> dict[str, Any]:
        standing = await self._standing(ways.target)
        if standing is None or standing.phase not in cutover.FROM:
            await Engine(ways).run(follow=False)
        try:
            done = await cutover.CutOver(ways).run()
        except ImportFailed as error:
            raise _AttemptFailed(str(error)) from error
        ways.say("the herd takes writes; foreign keys look at the rows")
        left = await cutover.finish(ways)
        found = {} if done is None else asdict(done)
        if left:
            found["left"] = "; ".join(left)[:_ERROR_LENGTH]
        return {"outcome": "done"} | found

    async def _abort(self, ways: Ways) -> dict[str, Any]:
        self.told.phase = "Aborting"
        standing = await self._standing(ways.target)
        if standing is not None and standing.phase == "done":  # too late
            return await self._cut_over(ways)
        if standing is not None:
            await cutover.abort(ways.target, ways.address)
        return {"outcome": "aborted"}

    async def _standing(self, target: Target) -> ImportStanding | None:
        return await target.standing() if await target.is_under_way() else None

    def _ways(self) -> Ways:
        order = self._order
        try:
            dsn = Path(order.dsn_file).read_text().strip()
        except OSError as error:
            raise ImportFailed(f"no connection string of the source: {error}") from error
        pg_dump = shutil.which("pg_dump")
        if pg_dump is None:
            raise ImportFailed("there is no pg_dump in this image")
        return Ways(
            SourceAddress(dsn), self._target(self._say), Path(pg_dump), order.jobs,
            self._say, self._show, self._tell_lag,
        )  # fmt: skip

    def _target(self, tell: Callable[[str], None] = lambda _text: None) -> Target:
        return Target([Destination(one.name, one.dsn) for one in self._order.members], tell)

    def _say(self, text: str) -> None:
        _log(text)
        self.told.line = text

    def _show(self, text: str) -> None:
        """Progress: so what has stopped it has passed."""
        self.told.line, self.told.error, self.told.reasons = text, "", ()
        now = asyncio.get_running_loop().time()
        if now - self._printed >= _LINE_S:
            self._printed = now
            _log(text)

    def _tell_lag(self, seconds: float, size: int) -> None:
        self.told.lag_s, self.told.lag_bytes = round(seconds, 1), size

    async def _watch(self) -> None:
        """Keep the numbers up to date, by a session of its own with the herd."""
        target = self._target()
        try:
            while True:
                with contextlib.suppress(ImportFailed, psycopg.Error):
                    await self._count(target)
                await asyncio.sleep(_LOOK_S)
        finally:
            await target.close()

    async def _count(self, target: Target) -> None:
        standing = await self._standing(target)
        told = self.told
        if self._order.goal == "abort":
            return
        if standing is None:
            told.phase = "Looking"
            return
        copied = await target.copied()
        told.phase = _PHASES[standing.phase]
        if standing.stopped and standing.phase != "done":
            told.phase = "CuttingOver"
        told.tables, told.tables_done = len(copied), sum(one.done for one in copied)
        told.rows, told.bytes = sum(one.rows for one in copied), sum(one.bytes for one in copied)
        told.bytes_of_tables = sum(one.table.bytes for one in copied)


def _log(line: str) -> None:
    """A line for ``kubectl logs``."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class _AttemptFailed(Exception):
    """A cut-over was tried, and taken back."""


@contextlib.asynccontextmanager
async def served(told: Told, port: int) -> Any:
    """Answer every request on this port with what is told; 0 is any free port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_HUNG_UP):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n\r\n")
                content = json.dumps(asdict(told)).encode()
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + content)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, port=port) as server:
        yield server.sockets[0].getsockname()[1]


async def _run(order: ImportOrder) -> tuple[dict[str, Any], int]:
    job = Job(order)
    task = asyncio.current_task()
    assert task is not None
    # As the first process of a container it gets no signal that it does not ask for.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with served(job.told, order.progress_port):
        return await job.run()


def main() -> None:
    """Do what the first argument asks for, in JSON."""
    try:
        order = msgspec.json.decode(sys.argv[1].encode(), type=ImportOrder)
    except msgspec.DecodeError as error:
        _log(f"the operator and this image do not fit: {error}")
        raise SystemExit(REFUSED) from error
    try:
        outcome, status = asyncio.run(_run(order))
    except asyncio.CancelledError:
        raise SystemExit(_ENDED_BY_SIGNAL) from None
    Path(order.outcome_file).write_text(json.dumps(outcome))
    _log(json.dumps(outcome))
    raise SystemExit(status)


if __name__ == "__main__":
    main()
