"""Questions that members ask each other beside the log, over the links that they have anyway.

An answer may be lost with its link, or come too late: whoever asks goes on without it. It promises
nothing about the order. Nothing survives a restart.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import structlog

from pgherd_sidecar.agent.membership.peers import Peers
from pgherd_sidecar.core.consensus.model.messages import PollReply, PollRequest

log = structlog.get_logger()

_LOOK_S = 0.1

Answerer = Callable[[bytes], Awaitable[bytes]]


class Polls:
    """The questions of one member, and what it answers to those of others.

    Attributes:
        links: how many links to a peer there have been.

    Args:
        peers: the other members: made anew when the log begins anew.
    """

    def __init__(self, peers: Callable[[], Peers]) -> None:
        self.links: Counter[str] = Counter()
        self._peers = peers
        self._answerer: Answerer | None = None
        self._answering: set[asyncio.Task[None]] = set()
        # answers to a former process of this member fit no question of this one
        self._asked = secrets.randbits(62)
        self._open: dict[int, dict[str, bytes]] = {}
        self._news = asyncio.Event()

    async def ask(
        self,
        names: Iterable[str],
        data: bytes,
        longest_s: float,
        *,
        enough: Callable[[bytes], bool] = lambda _: False,
    ) -> dict[str, bytes]:
        """Ask peers, and wait until all have answered that are still linked.

        Args:
            names: whom to ask; those that can't be asked now are left out.
            longest_s: how long to wait at most.
            enough: of an answer; whether the others need not be waited for.

        Returns:
            The answers by name; who did not answer is missing.
        """
        asked = self._peers().linked & frozenset(names)
        self._asked += 1
        number, answers = self._asked, dict[str, bytes]()
        self._open[number] = answers
        self._peers().send([(name, PollRequest(number, data)) for name in sorted(asked)])
        try:
            async with asyncio.timeout(longest_s):
                while (asked & self._peers().linked) - answers.keys():
                    if any(map(enough, answers.values())):
                        break
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await self._news.wait()
        except TimeoutError:
            pass
        finally:
            del self._open[number]
        return answers

    def answer_by(self, answerer: Answerer | None) -> None:
        """Say who answers questions from now on; with None they are answered with nothing."""
        self._answerer = answerer
        if answerer is None:
            for task in self._answering:
                task.cancel()

    def receive(self, peer: str, message: PollRequest | PollReply) -> None:
        """Take what a peer asks or answers."""
        if isinstance(message, PollReply):
            if message.number in self._open:
                self._open[message.number].setdefault(peer, message.data)
                self._news.set()
        elif self._answerer is None:
            self._peers().send([(peer, PollReply(message.number, b""))])
        else:
            work = self._answer(self._answerer, peer, message)
            task = asyncio.get_running_loop().create_task(work)
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, answerer: Answerer, peer: str, question: PollRequest) -> None:
        """Answer; whatever a peer asks, this member goes on."""
        said = b""
        try:
            said = await answerer(question.data)
        except Exception as error:
            log.warning("poll.failed", peer=peer, error=str(error), exc_info=error)
        finally:
            self._peers().send([(peer, PollReply(question.number, said))])
