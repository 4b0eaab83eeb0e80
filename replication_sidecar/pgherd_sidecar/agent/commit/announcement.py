"""Announces in the log that this member's server has begun anew: from there on it may write.

Its delivery rules out whatever an earlier incarnation sent and nobody has ordered yet
(``core.replication.state``).
"""

import asyncio
from collections.abc import Callable

from pgherd_sidecar.agent.base.errors import SupersededError
from pgherd_sidecar.core.replication.entries import Incarnation, encode_entry
from pgherd_sidecar.core.replication.state import ReplicatedState

_RETRY_S = 1.0
_NO_PROPOSER_S = 0.1


class Announcement:
    """The announcement of one incarnation, until it has been delivered.

    Args:
        entry: the incarnation.
        submit: sends entries to the ordered log; they may be lost.
        state: has had each entry before ``delivered`` is told of it.
    """

    def __init__(
        self, entry: Incarnation, submit: Callable[[bytes, int], bool], state: ReplicatedState
    ) -> None:
        self._entry = entry
        self._submit = submit
        self._state = state
        self._begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def begun(self) -> int:
        """Announce it until it has been delivered; return where that was."""
        entry = encode_entry(self._entry)
        while not self._begun.done():
            wait_s = _RETRY_S if self._submit(entry, 1) else _NO_PROPOSER_S
            await asyncio.wait([self._begun], timeout=wait_s)
        return self._begun.result()

    def delivered(self, gid: int, entry: Incarnation) -> None:
        """Note that some incarnation has been delivered.

        Raises:
            SupersededError: a later one of this member has begun already.
        """
        if entry != self._entry or self._begun.done():
            return
        number, mine = entry.member, entry.incarnation
        newest = self._state.incarnation(number)
        if self._state.has_begun(number, mine):
            self._begun.set_result(gid)
        elif newest >= mine:
            raise SupersededError(newest)
        # else this member is none yet: it is announced again
