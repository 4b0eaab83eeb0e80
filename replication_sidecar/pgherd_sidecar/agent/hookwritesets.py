"""The local writesets that are under way: sent into the ordered log, and without a verdict yet.

They are submitted together, and again whenever they may have been lost; who has waited for too long
learns that the outcome is unknown. Nothing is decided here: ``session`` hands out verdicts when the
log delivers. Nothing survives a restart; a new incarnation in the log rules out whatever was under
way (C11, C12).
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable
from time import perf_counter

from pgherd_sidecar.agent.figures import CommitFigures
from pgherd_sidecar.agent.hookconnection import HookConnection, Pending
from pgherd_sidecar.agent.hooktext import explain, key_slots, wire_keys
from pgherd_sidecar.core.certifier import Conflict
from pgherd_sidecar.core.entries import Writeset, encode_entry

REPEAT = "Repeat the transaction."
HELD = "No member takes writes until an administrator has chosen: see `pgherd status`."

_RESUBMIT_S = 2.0
_SUBMISSION_BYTES = 1 << 20


class WritesetSender:
    """The writesets of one incarnation that are under way, and who waits for their verdicts.

    Args:
        submit: sends entries to the ordered log; False if that was not possible now.
        wait_s: longest wait for a verdict, before 08007.

    Attributes:
        pending: what is under way, by sequence, oldest first.
        figures: what the verdicts were, for people.
    """

    def __init__(
        self,
        member: int,
        incarnation: int,
        submit: Callable[[bytes, int], bool],
        wait_s: float,
    ) -> None:
        self.pending: dict[int, Pending] = {}
        self.figures = CommitFigures()
        self._by_xid: dict[int, Pending] = {}
        self._member = member
        self._incarnation = incarnation
        self._submit = submit
        self._wait_s = wait_s
        self._sequence = 0
        self._outbox: list[Pending] = []
        self._loop = asyncio.get_running_loop()

    def __contains__(self, xid: int) -> bool:
        """Whether the writeset of a transaction is under way."""
        return xid in self._by_xid

    # ---- sending ---------------------------------------------------------------------------

    def send(self, xid: int, flags: int, keys: "array[int]", body: bytes, pid: int) -> Pending:
        """Make a writeset and put it on its way; nobody waits for it yet.

        Args:
            pid: of its session, 0 if that is gone.
        """
        self._sequence += 1
        writeset = Writeset(
            self._member,
            self._incarnation,
            self._sequence,
            next(iter(self.pending), self._sequence),
            xid,
            flags,
            wire_keys(keys).tobytes(),
            body,
        )
        now = self._loop.time()
        pending = Pending(
            writeset,
            encode_entry(writeset),
            keys,
            key_slots(keys),
            pid,
            None,
            now,
            now + self._wait_s,
            perf_counter(),
        )
        self.pending[self._sequence] = pending
        self._by_xid[xid] = pending
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(pending)
        return pending

    def await_verdict(self, connection: HookConnection, xid: int) -> bool:
        """Have a session wait for the verdict on its transaction; False if that has come."""
        pending = self._by_xid.get(xid)
        if pending is None:
            return False
        if pending.connection is not None:
            pending.connection.pending = None
        pending.connection = connection
        connection.pending = pending
        connection.pid = pending.pid
        return True

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        self._submit_all(batch)

    def resubmit(self) -> None:
        """Send everything under way again: the proposer is another one, or it was long ago."""
        self._submit_all(self.pending.values())

    def _submit_all(self, batch: Iterable[Pending]) -> None:
        """Submit in parts that are not too large for one message."""
        part: list[Pending] = []
        size = 0
        for pending in batch:
            if part and size + len(pending.encoded) > _SUBMISSION_BYTES:
                self._submit_part(part)
                part, size = [], 0
            part.append(pending)
            size += len(pending.encoded)
        if part:
            self._submit_part(part)

    def _submit_part(self, part: list[Pending]) -> None:
        now = self._loop.time()
        lost = not self._submit(b"".join([p.encoded for p in part]), len(part))
        for pending in part:
            pending.lost = lost
            pending.sent_s = now

    def sweep(self, *, late: bool) -> None:
        """Send again what may have been lost, and answer who waits too long, if it is ``late``."""
        now = self._loop.time()
        stale = False
        for pending in self.pending.values():
            stale = stale or pending.lost or now - pending.sent_s > _RESUBMIT_S
            if late and now >= pending.deadline_s and pending.connection is not None:
                self._unknown(pending, "no majority has confirmed it in time")
        if stale:
            self.resubmit()

    def wait_longer(self, more_s: float) -> None:
        """What is ordered was not delivered for so long."""
        for pending in self.pending.values():
            pending.deadline_s += more_s

    def _unknown(self, pending: Pending, why: str) -> None:
        connection = _detach(pending)
        if connection is not None:
            w = pending.writeset
            connection.fail(
                "08007",
                f"the outcome of this transaction is not known yet: {why}",
                f"Its token is {w.member}.{w.incarnation}.{w.xid}.",
                "Do not repeat it before you know: "
                "SELECT pgherd.transaction_status(token) answers on any member.",
            )

    # ---- verdicts --------------------------------------------------------------------------

    def take(self, sequence: int) -> Pending | None:
        """Remove and return what was delivered; None if this incarnation did not send it."""
        pending = self.pending.pop(sequence, None)
        if pending is not None:
            self._by_xid.pop(pending.writeset.xid, None)
        return pending

    def committed(self, pending: Pending, gid: int, prev: int, wait: bytes) -> None:
        """Answer COMMIT; ``wait`` names the predecessor to wait for."""
        connection = _detach(pending)
        assert connection is not None
        connection.done(b"C %d %d %b" % (gid, prev, wait))
        self.figures.committed(perf_counter() - pending.began_s)

    def aborted(self, pending: Pending, conflict: Conflict) -> None:
        """Answer ABORT, if somebody still waits (it may have been told before)."""
        connection = _detach(pending)
        if connection is not None:
            body, flags = pending.writeset.body, pending.writeset.flags
            message, detail = explain(conflict, body, flags)
            self.figures.lost(conflict, body, flags)
            connection.fail("40001", message, detail, REPEAT)

    def refused(self, pending: Pending, reason: str) -> None:
        """Answer that it had no effect anywhere, since the herd takes no writes."""
        connection = _detach(pending)
        if connection is not None:
            connection.fail("25006", f"this node takes no writes: {reason}", "", HELD)

    def tell_losers(
        self, taken: set[int] | None, preview: "Callable[[array[int]], Conflict | None]"
    ) -> None:
        """Say it to those under way that have lost already: they may hold locks.

        Args:
            taken: keys just taken exclusively, without their mode (and a few other numbers);
                None if these are too many.
            preview: says what a writeset with these keys has lost to.
        """
        for pending in self.pending.values():
            concerned = taken is None or not taken.isdisjoint(pending.slots)
            if pending.connection is not None and concerned:
                conflict = preview(pending.keys)
                if conflict is not None:
                    self.aborted(pending, conflict)

    def ruled_out(self, pending: Pending) -> None:
        """Answer ABORT to what the log has ruled out before it was ordered."""
        connection = _detach(pending)
        if connection is not None:
            connection.fail("40001", "this incarnation of the member is superseded", "", REPEAT)

    def waits(self, pid: int) -> bool:
        """Whether a session waits for its verdict."""
        return any(p.pid == pid and p.connection for p in self.pending.values())


def _detach(pending: Pending) -> HookConnection | None:
    connection, pending.connection = pending.connection, None
    if connection is not None:
        connection.pending = None
    return connection
