"""Has the commands of transactions judged, those with long texts by a process beside the sidecar.

The event loop goes on meanwhile, and whatever a text does to its reader, it does to that process
(``pg.ddl.judging``). One at a time runs. Nothing survives a restart.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from pgherd_sidecar.core.replication.merge import Item
from pgherd_sidecar.env.processes.programs import (
    ProgramError,
    environment_of_modules,
    module,
    run_program,
)
from pgherd_sidecar.pg.ddl.judging import Judged, are_long, judge_commands, refused

log = structlog.get_logger()

_READER: Final = "pgherd_sidecar.pg.ddl.judging"
_LONGEST_S: Final = 60.0
_UNREADABLE: Final = refused(
    "the message with this DDL is too long, or its statements are too deeply nested",
    "Send DDL in messages of its own, with fewer statements in each.",
)


class Judging:
    """The judgements that sessions of the hook wait for."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, items: list[Item], answer: Callable[[Judged], None]) -> None:
        """Judge commands with long texts.

        Args:
            items: the body of a writeset, as PostgreSQL captured it.
            answer: called once, unless `close` was.
        """
        task = asyncio.get_running_loop().create_task(self._answer(items, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Answer nobody any more."""
        for task in self._running:
            task.cancel()

    async def _answer(self, items: list[Item], answer: Callable[[Judged], None]) -> None:
        async with self._alone:
            judged = await _judge_apart(items)
        answer(judged)


async def judge(items: list[Item]) -> Judged:
    """Judge commands with texts of any length.

    Raises:
        ValueError: not what PostgreSQL captures.
    """
    return await _judge_apart(items) if are_long(items) else judge_commands(items)


async def _judge_apart(items: list[Item]) -> Judged:
    """Have a process of its own do it; one that does not answer can't read the texts.

    Whatever goes wrong, the session is not left waiting.
    """
    found: list[Judged] = []

    def take(line: str) -> None:
        found.append(msgspec.json.decode(line, type=Judged))

    try:
        async with asyncio.timeout(_LONGEST_S):
            await run_program(
                *module(_READER),
                stdin=await asyncio.to_thread(msgspec.json.encode, items),
                on_line=take,
                environment=environment_of_modules(),
            )
    except (ProgramError, TimeoutError) as error:
        log.warning("command.unreadable", error=str(error) or type(error).__name__)
    except Exception as error:
        log.warning("command.unreadable", error=str(error), exc_info=error)
    return found[0] if found else _UNREADABLE
