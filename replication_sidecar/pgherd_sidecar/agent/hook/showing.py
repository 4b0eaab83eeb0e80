"""Waits until the other members show a command, before its session hears that it has committed.

A session's next statement may run on any member, so it is to find there what a command has made.
The wait changes nothing about the commit: a member that is late, or can't say, is only named in a
notice. Nobody waits for it again before it has shown what it was late with. Nothing survives a
restart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import structlog

log = structlog.get_logger()

_QUESTION: Final = b"shown"
_SLICE_S: Final = 0.5
"""A session hears "not yet" after so long, because it can't be cancelled while it waits here."""
_AGAIN_S: Final = 2.0
"""A member that has not answered for so long is asked again."""
_ROOM: Final = 58
"""Bytes that libpq keeps of an answer, without its first word."""
_LONGEST_S: Final = 2 * _AGAIN_S
"""Nobody waits for an answer any more."""


class Showing:
    """Knows which members show which commands, and tells others what this one shows.

    Args:
        ask: asks peers (see ``agent.log.polls``): whom, what, and for how many seconds at most.
        others: returns the other members that can be asked now and that clients may go to, but for
            readers: no command waits for one.
        visible: waits until a GID is visible here.
    """

    def __init__(
        self,
        ask: Callable[[Collection[str], bytes, float], Awaitable[dict[str, bytes]]],
        others: Callable[[], Collection[str]],
        visible: Callable[[int], Awaitable[None]],
    ) -> None:
        self._ask = ask
        self._others = others
        self._visible = visible
        self._questions: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._late: dict[str, int] = {}  # the GID that a member has not shown in time
        self._waiting: set[asyncio.Task[None]] = set()

    def begin(self, gid: int, rest_s: float, answer: Callable[[bytes], None]) -> None:
        """Find out who shows a command.

        Args:
            gid: of the command, which this member need not show yet.
            rest_s: how long its session goes on waiting.
            answer: called once, unless `close` was: ``OK`` if all show it, ``WAIT`` if the session
                is to ask again, or else ``LATE`` with the names of those that don't.
        """
        task = asyncio.get_running_loop().create_task(self._answer(gid, rest_s, answer))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        """Answer nobody any more."""
        for task in (*self._waiting, *self._questions.values()):
            task.cancel()

    @staticmethod
    def is_asked(question: bytes) -> bool:
        """Whether a peer's question is for `tell`."""
        return question.startswith(_QUESTION + b" ")

    async def tell(self, question: bytes) -> bytes:
        """Answer another member when its command is visible here, with nothing if that lasts."""
        try:
            async with asyncio.timeout(_LONGEST_S):
                await self._visible(int(question.split()[1]))
        except TimeoutError:
            return b""
        return _QUESTION

    async def _answer(self, gid: int, rest_s: float, answer: Callable[[bytes], None]) -> None:
        """Answer; whatever goes wrong, the command's session is not left waiting."""
        said = b"OK"
        try:
            said = await self._look(gid, rest_s)
        except Exception as error:
            log.warning("showing.failed", error=str(error), exc_info=error)
        answer(said)

    async def _look(self, gid: int, rest_s: float) -> bytes:
        others = self._others()
        behind = {name for name in others if self._late.get(name, gid) < gid}
        questions = {name: self._question(name, gid) for name in others if name not in behind}
        if questions:
            await asyncio.wait(questions.values(), timeout=min(rest_s, _SLICE_S))
        pending = {name for name, question in questions.items() if not question.done()}
        if pending and rest_s > _SLICE_S:
            return b"WAIT"
        for name in pending:
            self._late.setdefault(name, gid)
        unable = {n for n, one in questions.items() if one.done() and not one.result()}
        late = sorted(behind | pending | unable)
        return b"LATE " + _listed(late).encode() if late else b"OK"

    def _question(self, name: str, gid: int) -> asyncio.Task[bool]:
        """The question to a member, which is asked once however many wait for the answer."""
        place = name, gid
        if place not in self._questions:
            task = asyncio.get_running_loop().create_task(self._shows(name, gid))
            self._questions[place] = task
            task.add_done_callback(lambda _: self._forget(place))
        return self._questions[place]

    def _forget(self, place: tuple[str, int]) -> None:
        del self._questions[place]
        name, gid = place
        if self._late.get(name) == gid:
            del self._late[name]

    async def _shows(self, name: str, gid: int) -> bool:
        """Whether a member shows a GID; no matter, if it can't be reached any more."""
        while name in self._others():
            said = await self._ask([name], b"%b %d" % (_QUESTION, gid), _AGAIN_S)
            if name in said:
                return said[name] == _QUESTION
        return True


def _listed(names: list[str]) -> str:
    """As many as there is room for in an answer, and how many others."""
    shown = len(names)
    while True:
        rest = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + rest
        if shown == 0 or len(text.encode()) <= _ROOM:
            return text
        shown -= 1
