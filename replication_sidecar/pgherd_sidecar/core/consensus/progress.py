"""How far one peer is, as the proposer sees it.

Two ways to feed a peer::

    probing    one Append at a time, until an Ack shows where the logs agree
    streaming  Appends one after the other, ahead of the Acks, up to a bound in bytes

A peer is probing at first and after each Reject. Lost by a restart, like the proposer itself.
"""

from collections import deque


class Progress:
    """One peer of the proposer.

    Invariants:
        `match` < `next`: up to `match` the peer has flushed the proposer's log in this term.
        `fetching` is the first position being read from disk for the peer, 0 for none.
        While probing, `next` stays where the logs may agree and `sent` tells that a probe is out.
    """

    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "announced",
        "disk",
        "fetching",
        "goal",
        "heard_s",
        "match",
        "moved_s",
        "next",
        "probing",
        "sent",
    )

    def __init__(self, next_position: int, now: float, disk: str = "") -> None:
        self.disk = disk
        self.match = 0
        self.next = next_position
        self.probing = True
        self.sent = False
        self.fetching = 0
        self.announced = 0
        #: what the proposer had a heartbeat ago
        self.goal = 1 << 64
        self.heard_s = now
        #: when it last flushed something new, or had all there was
        self.moved_s = now
        self._inflight: deque[tuple[int, int]] = deque()
        self._inflight_bytes = 0

    @property
    def caught_up(self) -> bool:
        """Whether the peer has flushed all that the proposer had a heartbeat ago."""
        return self.match >= self.goal

    def stuck_s(self, now: float) -> float:
        """Return for how long it has flushed nothing though there is something, 0 if it does."""
        return 0.0 if self.caught_up else now - self.moved_s

    def ready(self, max_inflight: int) -> bool:
        """Tell whether the peer may be sent more."""
        if self.fetching:
            return False
        return not self.sent if self.probing else self._inflight_bytes < max_inflight

    def note_sent(self, last: int, size_bytes: int) -> None:
        """Account for an Append that ends at `last`."""
        if self.probing:
            self.sent = True
            return
        self.next = last + 1
        self._inflight.append((last, size_bytes))
        self._inflight_bytes += size_bytes

    def acknowledged(self, position: int, now: float) -> None:
        """The peer's log agrees up to `position`, flushed: stream from here on."""
        if position > self.match or self.caught_up:
            self.moved_s = now
        self.heard_s = now
        self.match = max(self.match, position)
        if self.next <= position:
            self.next = position + 1
            self.fetching = 0
        self.probing = False
        inflight = self._inflight
        while inflight and inflight[0][0] <= position:
            self._inflight_bytes -= inflight.popleft()[1]

    def probe_after(self, position: int) -> None:
        """The logs may agree up to `position` only: probe from there."""
        self.next = max(position, self.match) + 1
        self.probing = True
        self.sent = False
        self.fetching = 0
        self._inflight.clear()
        self._inflight_bytes = 0
