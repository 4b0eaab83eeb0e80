"""Asks the other members whether they could execute a command, before it is ordered.

Most commands need nothing that a member could lack, and none is asked then (``pg.ddl.needs``).
They are not asked again for what all of them had lately, but always for a statement that is tried.

A member that is away, answers late or can't say does not keep a command back. So a veto is
certain, and its absence is not. Nothing survives a restart.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from pgherd_sidecar.core.commit.keys import newest_base
from pgherd_sidecar.pg.ddl.needs import NEEDS_MAX, TRIED, Ballot, Need, Poll

log = structlog.get_logger()

ANSWER_S: Final = 10.0
"""The longest wait of a command for the answers."""
_KNOWN_S: Final = 600.0
"""For so long a member is taken to have still what it had, while the link to it holds."""
_KNOWN_MAX: Final = 1000
_REST_S: Final = 10.0
"""A member that did not answer in time is not asked again for so long."""
_POLL_BYTES: Final = 1 << 20
"""Nobody is asked a longer question."""
_NONE: Final = Ballot(sure=False, slow=True)
"""For a member that has not answered in time."""


@dataclass(frozen=True, slots=True)
class Veto:
    """The member that can't execute the commands of a transaction, and why."""

    member: str
    reason: str


class Ask(Protocol):
    """See ``agent.log.polls``."""

    def __call__(
        self,
        names: Iterable[str],
        data: bytes,
        longest_s: float,
        *,
        enough: Callable[[bytes], bool],
    ) -> Awaitable[dict[str, bytes]]:
        """Ask peers."""


class Voting:
    """The votes of one session of the replica.

    Args:
        ask: asks peers.
        others: the voters with a database, but for this one, and the number of the link to each of
            them: behind another link may be another machine. No command waits for a reader.
        own: what this member answers to a `Poll` itself. A name that it doesn't know either
            was misread, since the command has worked here.
    """

    def __init__(
        self,
        ask: Ask,
        others: Callable[[], Mapping[str, int]],
        own: Callable[[bytes], Awaitable[bytes]],
    ) -> None:
        self._ask = ask
        self._own = own
        self._others = others
        self._known: dict[tuple[str, int, int], float] = {}  # member, its link, need -> since when
        self._rests: dict[tuple[str, int], float] = {}  # member, its link -> until when
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def begin_vote(
        self, keys: "array[int]", needs: list[Need], answer: Callable[[Veto | None], None]
    ) -> None:
        """Find out whether a transaction may be ordered.

        Args:
            keys: groups ``base, n, key1 .. keyn`` of its writeset.
            needs: of its commands.
            answer: called once, at once or within ``ANSWER_S``, unless the session ends.
        """
        wanted = {
            name: link for name, link in self._others().items() if self._asks(name, link, needs)
        }
        asked = {
            name: link
            for name, link in wanted.items()
            if len(needs) <= NEEDS_MAX and not self._is_resting(name, link)
        }
        if len(asked) < len(wanted):
            log.info("command.not_voted", members=sorted(wanted.keys() - asked.keys()))
        if not asked:
            answer(None)
            return
        poll = Poll(newest_base(keys), needs)
        task = self._loop.create_task(self._answer(asked, poll, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Answer nobody any more."""
        for task in self._running:
            task.cancel()

    def _asks(self, name: str, link: int, needs: list[Need]) -> bool:
        """Whether there is something that a member is not known to have."""
        since = self._loop.time() - _KNOWN_S
        return any(
            need.kind in TRIED or self._known.get((name, link, need.mark), since) <= since
            for need in needs
        )

    def _is_resting(self, name: str, link: int) -> bool:
        return self._loop.time() < self._rests.get((name, link), 0.0)

    async def _answer(
        self, asked: dict[str, int], poll: Poll, answer: Callable[[Veto | None], None]
    ) -> None:
        """Vote; whatever goes wrong, the command's session is not left waiting."""
        veto = None
        try:
            veto = await self._vote(asked, poll)
        except Exception as error:
            log.warning("vote.failed", error=str(error), exc_info=error)
        answer(veto)

    async def _vote(self, asked: dict[str, int], poll: Poll) -> Veto | None:
        question = msgspec.json.encode(poll)
        if len(question) > _POLL_BYTES:
            log.info("command.not_voted", members=sorted(asked))
            return None
        answers = await self._ask(
            asked, question, ANSWER_S, enough=lambda said: bool(_read(said).veto)
        )
        ballots = {name: _read(answers[name]) if name in answers else _NONE for name in asked}
        vetoes = [
            Veto(name, ballot.veto)
            for name, ballot in sorted(ballots.items())
            if ballot.veto and not await self._is_misread(poll, ballot)
        ]
        silent = sorted(name for name, ballot in ballots.items() if not ballot.sure)
        if vetoes:
            log.warning("command.vetoed", by=vetoes[0].member, reason=vetoes[0].reason)
        elif silent:
            log.info("command.not_voted", members=silent)
        late = [name for name, ballot in ballots.items() if ballot.slow]
        if late:
            until = self._loop.time() + _REST_S
            others = self._others()
            self._rests = {one: at for one, at in self._rests.items() if one in others.items()}
            self._rests |= {(name, asked[name]): until for name in late}
        if not vetoes:
            self._remember({(n, asked[n]) for n in asked if n not in silent}, poll.needs)
        return vetoes[0] if vetoes else None

    async def _is_misread(self, poll: Poll, ballot: Ballot) -> bool:
        """Whether a member lacks what is a name by its looks only, or was dropped meanwhile."""
        need = poll.needs[ballot.need] if ballot.need < len(poll.needs) else None
        if need is None or need.kind in TRIED:
            return False
        return bool(_read(await self._own(msgspec.json.encode(Poll(ballot.gid, [need])))).veto)

    def _remember(self, members: set[tuple[str, int]], needs: list[Need]) -> None:
        now = self._loop.time()
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
        for need in needs:
            if need.kind not in TRIED:
                self._known |= {(name, link, need.mark): now for name, link in members}


def _read(said: bytes) -> Ballot:
    """An answer; one that is not understood says nothing."""
    try:
        return msgspec.json.decode(said, type=Ballot)
    except msgspec.DecodeError:
        return Ballot(sure=False)
