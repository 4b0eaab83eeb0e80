"""The work that waits for the disk: the next `Persist`, and the messages that depend on it.

The journal collects changes of control and log while the previous `Persist` is under way, which
is group commit for everything that arrives meanwhile. It normalises them to "control, truncate,
append", and keeps back messages until what they promise is durable [D1].

Nothing here survives a restart by itself.
"""

from collections import deque
from collections.abc import Sequence

from pgherd_sidecar.core.consensus.model.blocks import Block
from pgherd_sidecar.core.consensus.model.effects import Control, Persist
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError
from pgherd_sidecar.core.consensus.model.messages import Message


class Journal:
    """One `Persist` in flight at most, one being collected.

    Invariants:
        `flushed_position` never exceeds the log's last position, nor what the disk holds.
        `durable` is the control state the disk holds.
    """

    def __init__(self, durable: Control, last_position: int) -> None:
        self.durable = durable
        self.flushed_position = last_position
        self._control: Control | None = None
        self._truncate_after: int | None = None
        self._blocks: deque[Block] = deque()
        self._held: list[tuple[str, Message]] = []
        self._inflight: Persist | None = None
        self._inflight_held: list[tuple[str, Message]] = []
        #: last position on disk once everything handed out is done
        self._handed = last_position
        #: how much of the flight's blocks has not been truncated again
        self._inflight_last = last_position
        self._tickets = 0

    @property
    def idle(self) -> bool:
        """Whether everything is durable."""
        return self._inflight is None and not self._collected

    @property
    def _collected(self) -> bool:
        return bool(self._blocks) or self._control is not None or self._truncate_after is not None

    def save_control(self, control: Control) -> None:
        """Save `control` with the next `Persist`."""
        self._control = control

    def append(self, block: Block) -> None:
        """Append a block with the next `Persist`."""
        self._blocks.append(block)

    def truncate(self, position: int) -> None:
        """Drop everything after `position`: what is collected, in flight, or on disk."""
        while self._blocks and self._blocks[-1].first > position:
            self._blocks.pop()
        self.flushed_position = min(self.flushed_position, position)
        self._inflight_last = min(self._inflight_last, position)
        if position < self._handed:
            self._truncate_after = position
            self._handed = position

    def hold_message(self, peer: str, message: Message) -> None:
        """Send `message` when everything collected so far is durable."""
        self._held.append((peer, message))

    def drop_held(self) -> None:
        """Forget the messages kept back: they belong to a term that is over."""
        self._held.clear()
        self._inflight_held.clear()

    def take_messages(self) -> Sequence[tuple[str, Message]]:
        """Return what need not wait, because there is nothing to wait for."""
        if not self._held or not self.idle:
            return ()
        held, self._held = self._held, []
        return held

    def take_persist(self) -> Persist | None:
        """Return what is collected, unless a `Persist` is under way."""
        if self._inflight is not None or not self._collected:
            return None
        self._tickets += 1
        persist = Persist(self._tickets, self._control, self._truncate_after, tuple(self._blocks))
        if self._blocks:
            self._handed = self._blocks[-1].last
        self._inflight, self._inflight_held = persist, self._held
        self._inflight_last = self._handed
        self._control, self._truncate_after, self._held = None, None, []
        self._blocks.clear()
        return persist

    def done(self, ticket: int) -> list[tuple[str, Message]]:
        """Note that the `Persist` is durable; return the messages that waited for it.

        Raises:
            LocalProtocolError: it is not the one under way.
        """
        persist = self._inflight
        if persist is None or persist.ticket != ticket:
            raise LocalProtocolError(f"persisted({ticket}): not under way")
        self._inflight = None
        if persist.control is not None:
            self.durable = persist.control
        self.flushed_position = self._inflight_last
        held, self._inflight_held = self._inflight_held, []
        return held
