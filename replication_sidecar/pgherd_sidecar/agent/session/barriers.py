"""Readers that want to see all that was acknowledged before: from the log's barrier to a GID.

A session asks on its hook connection and waits there. When the log's round has ended, and all up to
the barrier's position has been delivered here, the session is told the GID that has to be visible
on this server; it looks for itself whether that is so. It hears "not yet" after a short time, so
that it can be cancelled, and says then that it goes on.

Nothing survives it: who still waits asks the next one.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from pgherd_sidecar.core.consensus import Barrier

_ABANDONED_S: Final = 5.0
"""A reader that was told "not yet" and is silent for so long waits no more."""


class Log(Protocol):
    """The log, as far as it is asked here."""

    def ask_barrier(self) -> int:
        """See ``LogHost``."""

    def drop_barriers(self) -> None:
        """See ``LogHost``."""

    @property
    def barrier(self) -> Barrier:
        """See ``LogHost``."""

    @property
    def term(self) -> int:
        """See ``LogHost``."""

    @property
    def proposer(self) -> str | None:
        """See ``LogHost``."""


@dataclass(slots=True)
class Reader:
    """Somebody who waits.

    Attributes:
        number: of the round that he waits for, None if none is under way for him.
        reign: term and proposer when he asked the log last.
        position: the lowest of the barriers that were found for him, None as long as there is none.
            Each of them covers what was acknowledged before he came; a later one may be lower,
            because an uncommitted end of a log was dropped [F6].
        answer: None while he has been told "not yet" and has not said that he goes on.
        timer: tells him so, or forgets him.
    """

    number: int | None
    reign: tuple[int, str | None]
    answer: Callable[[bytes], None] | None = None
    position: int | None = None
    timer: asyncio.TimerHandle | None = None


class Barriers:
    """Everybody who waits on one node, by connection.

    Args:
        log: see `Log`.
        delivered: the position up to which verdicts are known here.
        newest: the GID of the newest commit among what is delivered.
    """

    def __init__(
        self, log: Log, *, delivered: Callable[[], int], newest: Callable[[], int]
    ) -> None:
        self._log = log
        self._delivered = delivered
        self._newest = newest
        self._readers: dict[Hashable, Reader] = {}
        self._loop = asyncio.get_running_loop()

    def take_reader(self, who: Hashable, wait_s: float, answer: Callable[[bytes], None]) -> None:
        """Take a reader; what he waited for before, if he did, concerns him no more."""
        self.drop_reader(who)
        reader = self._readers[who] = Reader(self._log.ask_barrier(), self._reign)
        self._wait(who, reader, wait_s, answer)

    def go_on(self, who: Hashable, wait_s: float, answer: Callable[[bytes], None]) -> None:
        """Let a reader who was told "not yet" wait on; begin anew if he was forgotten."""
        reader = self._readers.get(who)
        if reader is None:
            self.take_reader(who, wait_s, answer)
            return
        self._wait(who, reader, wait_s, answer)
        self._serve(who, reader)
        if who in self._readers:
            self._ask_again(reader)

    def drop_reader(self, who: Hashable) -> None:
        """Forget a reader."""
        reader = self._readers.pop(who, None)
        if reader is not None and reader.timer is not None:
            reader.timer.cancel()
        if reader is not None and not self._readers:
            self._log.drop_barriers()

    def serve_readers(self) -> None:
        """Serve those who can be served: a round has ended, or more is delivered."""
        if self._readers:
            for who, reader in list(self._readers.items()):
                self._serve(who, reader)

    def reign_changed(self) -> None:
        """Ask anew where an uncommitted end of the log may have been dropped [F6]."""
        for reader in self._readers.values():
            if reader.reign != self._reign:
                self._note_barrier(reader)
                self._ask_again(reader)

    def close(self) -> None:
        """Forget all readers: their connections are about to be closed."""
        for who in list(self._readers):
            self.drop_reader(who)

    @property
    def _reign(self) -> tuple[int, str | None]:
        return self._log.term, self._log.proposer

    def _wait(
        self, who: Hashable, reader: Reader, wait_s: float, answer: Callable[[bytes], None]
    ) -> None:
        if reader.timer is not None:
            reader.timer.cancel()
        reader.answer = answer
        reader.timer = self._loop.call_later(wait_s, self._not_yet, who, reader)

    def _not_yet(self, who: Hashable, reader: Reader) -> None:
        answer, reader.answer = reader.answer, None
        reader.timer = self._loop.call_later(_ABANDONED_S, self.drop_reader, who)
        if answer is not None:
            answer(b"WAIT")

    def _serve(self, who: Hashable, reader: Reader) -> None:
        self._note_barrier(reader)
        ready = reader.position is not None and reader.position <= self._delivered()
        if ready and reader.answer is not None:
            answer = reader.answer
            self.drop_reader(who)
            answer(b"GID %d" % self._newest())

    def _note_barrier(self, reader: Reader) -> None:
        barrier = self._log.barrier
        if reader.number is not None and barrier.number >= reader.number:
            former = barrier.position if reader.position is None else reader.position
            reader.number, reader.position = None, min(former, barrier.position)

    def _ask_again(self, reader: Reader) -> None:
        reader.reign = self._reign
        if reader.number is None:
            reader.number = self._log.ask_barrier()
