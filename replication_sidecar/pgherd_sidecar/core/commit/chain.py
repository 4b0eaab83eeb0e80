"""The commit chain of one node: what becomes visible here, in GID order. Free of IO.

A *link* is one local transaction or one batch of the applier, and writes one row (gid, prev) into
``pgherd.applied``. Each link may become visible only after its predecessor. It waits for it on an
advisory lock, the *token* that the predecessor holds until its commit is visible, so nobody here
is in the path between two commits.

A link is *settled* once it is known to be visible; what a local transaction left undone because
its backend died is *repaired* from its writeset. Nothing survives a restart: the chain is read
back from ``pgherd.applied`` and the log.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pgherd_sidecar.core.replication.entries import Writeset


@dataclass(slots=True, eq=False)
class LocalLink:
    """A local transaction that was certified to commit.

    Attributes:
        writeset: what it changed, should it have to be applied as if remote.
        pieces_from: position of its first piece, if it came in pieces.
        yielding: it must give way to the applier and be repaired (C9).
        since_s: when the verdict was given, on the loop's clock.
        waits_until_s: until when its session waits for the other members to show it, likewise.
    """

    gid: int
    prev: int
    xid: int
    pid: int
    writeset: Writeset
    since_s: float
    pieces_from: int = 0
    yielding: bool = False
    waits_until_s: float = 0.0


@dataclass(slots=True, eq=False)
class BatchLink:
    """One transaction of the applier; ``number`` names its token.

    ``gid`` grows while the batch collects; a batch that writes nothing (a marker) repeats ``prev``
    and is ``pinned`` until it is done, because no GID tells. It is ``named`` once a local
    transaction was told to wait for the token.
    """

    number: int
    gid: int
    prev: int
    closed: bool = False
    pinned: bool = False
    named: bool = False


Link = LocalLink | BatchLink


@dataclass(slots=True)
class Chain:
    """Unsettled links in order, and who waits for them.

    Attributes:
        settled_gid: everything up to it is visible here.
    """

    settled_gid: int
    _links: deque[Link] = field(default_factory=deque)
    _waiters: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    @property
    def tail(self) -> Link | None:
        """The last link, None when all are settled."""
        return self._links[-1] if self._links else None

    @property
    def tail_gid(self) -> int:
        """The GID that the next link must name as its predecessor."""
        return self._links[-1].gid if self._links else self.settled_gid

    @property
    def head(self) -> Link | None:
        """The first link whose GID is not settled."""
        return next((link for link in self._links if link.gid > self.settled_gid), None)

    @property
    def wanted_gid(self) -> int:
        """The lowest GID that somebody waits for, as far as there are links for it."""
        wanted = min((gid for gid, _ in self._waiters), default=0)
        return min(wanted, self.tail_gid)

    def note_wait(self, gid: int, until_s: float) -> None:
        """The session of a local transaction waits until then for the other members to show it."""
        for link in self.locals():
            if link.gid == gid:
                link.waits_until_s = until_s

    def shows(self, position: int) -> bool:
        """Whether all that was ordered before a delivered position is visible for certain."""
        head = self.head
        return head is None or position <= head.prev + 1

    def append(self, link: Link) -> None:
        """Add the next link."""
        assert link.prev == self.tail_gid, f"link {link.gid} after {self.tail_gid}"
        self._links.append(link)

    def locals(self) -> list[LocalLink]:
        """Unsettled local transactions, oldest first."""
        return [link for link in self._links if isinstance(link, LocalLink)]

    def find_link(self, gid: int) -> Link | None:
        """The unsettled link of this GID."""
        return next((link for link in self._links if link.gid == gid), None)

    def settle_to(self, gid: int) -> None:
        """Note that everything up to ``gid`` is visible, and wake who waited for it."""
        links = self._links
        while links and links[0].gid <= gid and not _is_open(links[0]):
            links.popleft()
        if gid > self.settled_gid:
            self.settled_gid = gid
            if self._waiters:
                ready = [wake for wanted, wake in self._waiters if wanted <= gid]
                self._waiters = [waiter for waiter in self._waiters if waiter[0] > gid]
                for wake in ready:
                    wake()

    def next_to_repair(self, statuses: Mapping[int, str]) -> LocalLink | None:
        """The next local transaction that has ended without committing, None if there is none yet.

        Args:
            statuses: by xid, as the server tells them ("aborted" is the one that counts). What
                comes before the transaction must be visible first, because its rows build on it.
        """
        for link in self.locals():
            if self.settled_gid < link.prev:
                return None
            if statuses.get(link.xid) == "aborted" and link.gid > self.settled_gid:
                return link
        return None

    def when_settled(self, gid: int, wake: Callable[[], None]) -> None:
        """Call ``wake`` once ``gid`` is visible here, at once if it is."""
        if gid <= self.settled_gid:
            wake()
        else:
            self._waiters.append((gid, wake))

    def forget_waiter(self, wake: Callable[[], None]) -> None:
        """Wake nobody by this any more."""
        self._waiters = [waiter for waiter in self._waiters if waiter[1] != wake]


def _is_open(link: Link) -> bool:
    return isinstance(link, BatchLink) and (link.pinned or not link.closed)
