"""A node of the simulated herd: its model server, its real commit path, and a sidecar's work."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from model_server import EXCLUSIVE, SHARED, TABLE, Key, Server, Violation
from pgherd_sidecar.core.commit.answers import GivenUp
from pgherd_sidecar.core.commit.batches import ApplyPieces, RunDdl, Work
from pgherd_sidecar.core.commit.chain import BatchLink, LocalLink
from pgherd_sidecar.core.commit.deciding import LargeDecision
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.commit.underway import TransactionLimits
from pgherd_sidecar.core.commit.victims import Act, Blocker, Order
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    Incarnation,
    Piece,
    Writeset,
    encode_entry,
    key_array,
)
from pgherd_sidecar.core.replication.merge import Item, decode_body
from pgherd_sidecar.core.replication.state import ReplicatedState
from sim_clients import SCHEMA, Client, Connection
from sim_processes import Cancelled, DeadlockDetected, Process, Steps, Terminated

if TYPE_CHECKING:
    from sim_commits import CommitWorld

WAIT_S = 3.0
LIMITS: Final = TransactionLimits(1 << 20, 1 << 20, 40, 10_000, 100, WAIT_S)
BOUND_S = WAIT_S + 0.5
STUCK_S = 10.0
"""So long the first of the chain may be stuck in its commit."""
APPLIER, REPAIR = 1, 2
CLIENTS = 3


class CommitNode:
    """A member: its server, its commit path, and what a sidecar does around it."""

    def __init__(self, world: CommitWorld, member: int) -> None:
        self.world = world
        self.member = member
        self.server = Server()
        self.incarnation = 0
        self.stalled_until_s = 0.0
        self.up = self.ready = False
        self.paused_s = 0.0
        self.clients: list[Client] = []
        self._checked = 0
        self._own: list[Process] = []
        self._pids = count(1000 * member + 100)
        world.after(0.0, self.start)

    # ---- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a session with the server, as a new incarnation."""
        world = self.world
        self.incarnation += 1
        self.up, self.ready, self.asked = True, False, False
        self.state = ReplicatedState((1, 2, 3))
        self.path = CommitPath(
            self.member, self.incarnation, self.state, self.server.last_gid, LIMITS
        )
        first, last = self.path.batches.first_tokens()
        self.server.tokens = set(range(first, last + 1))
        self.path.batches.hold_first()
        self.at_work: dict[int, int] = {}
        self.repairing = False
        self._catalog = self._schema()
        self._own = [
            Process(world, steps())
            for steps in (self._apply, self._settle, self._watch, self._tick, self._announce)
        ]
        self.clients = []
        for _ in range(CLIENTS):
            self._new_client()
        world.begun(self)
        self.deliver()

    def end_sidecar(self) -> None:
        """The sidecar dies: its sessions with the server end, and those in COMMIT hear 08007."""
        if not self.up:
            return
        self.up = self.ready = False
        self.world.ended(self)
        for process in self._own:
            process.stop()
        for pid in (APPLIER, REPAIR):
            self.server.release(pid)
        for client in list(self.clients):
            client.end(Terminated())
        self.clients = []
        self.world.after(self.world.rng.uniform(0.05, 1.0), self.start)

    def crash_server(self) -> None:
        """The server dies, and with it the session of the sidecar; the last commits are lost."""
        if self.up:
            self.end_sidecar()
            self.server.crash(self.world.rng.randint(0, len(self.server.applied)))

    def kill_session(self) -> None:
        """Some session dies, wherever it is."""
        if self.up and self.clients:
            self.world.rng.choice(self.clients).end(Terminated())

    def _new_client(self) -> None:
        client = Client(self, next(self._pids))
        self.clients.append(client)
        client.start()

    def left(self, client: Client) -> None:
        """A client's session has ended."""
        if not self.up:
            return
        self.path.outbox.end_session(client.connection)
        if any(link.pid == client.pid for link in self.path.chain.locals()):
            self.asked = True
        self.clients.remove(client)
        self.world.after(0.01, self._replace, self.incarnation)

    def _replace(self, incarnation: int) -> None:
        if self.up and incarnation == self.incarnation:
            self._new_client()

    # ---- the log -----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Deliver some of what is ordered."""
        world = self.world
        if not self.up or self.path.decider.large is not None:
            return
        if world.now < self.stalled_until_s:
            world.after(self.stalled_until_s - world.now + 0.001, self.deliver)
            return
        known = world.known_to(self.member)
        end = min(known, self.state.position + world.rng.randint(1, 8))
        for gid in range(self.state.position + 1, end + 1):
            entry = world.log[gid - 1]
            keys = key_array(entry.keys) if isinstance(entry, Writeset) else None
            decision = self.path.decider.decide(gid, entry, keys, world.now)
            if decision is None:
                large = self.path.decider.large
                assert large is not None
                self._own.append(Process(world, self._decide_large(large)))
                break
            if isinstance(entry, Writeset):
                assert keys is not None
                self.path.deliver_writeset(gid, entry, keys, decision, world.now)
            elif isinstance(entry, Piece):
                counts = decision.kind.value == "nothing"
                self.path.deliver_piece(entry, world.now, counts=counts)
        self.path.end_block()
        self.carry_out()
        if self.state.position < known:
            world.after(0.001, self.deliver)

    def proposer_changed(self) -> None:
        """Send again what the one before may not have ordered."""
        if self.up:
            self.path.outbox.resubmit()
            self.carry_out()

    def _decide_large(self, large: LargeDecision) -> Steps:
        """Read the keys of a large transaction back, slowly."""
        pieces = list(self.world.pieces_of(large.writeset, large.first, large.gid))
        began_s = self.world.now
        while large.wants_pieces:
            yield self.world.rng.uniform(0.0, 0.2)
            for _ in large.take_pieces(pieces[:1]):
                yield 0.001
            del pieces[:1]
        for _ in large.conclude():
            yield 0.001
        now = self.world.now
        self.paused_s += now - began_s
        decision = self.path.decider.finish(large, now)
        self.path.deliver_writeset(
            large.gid, large.writeset, array("q"), decision, now, pieces_from=large.first
        )
        self.path.end_block()
        self.carry_out()
        self.deliver()

    def carry_out(self) -> None:
        """Carry out the effects of the commit path."""
        effects = self.path.take_effects(self.world.now)
        for answer in effects.answers:
            if isinstance(answer, GivenUp):
                continue
            assert isinstance(answer.session, Connection)
            answer.session.hear(answer)
        for submission in effects.submissions:
            if not self.world.submit(self.member, submission.data):
                self.path.outbox.out.keep(submission.sent)

    def _announce(self) -> Steps:
        mine = Incarnation(self.member, self.incarnation)
        while not self.state.has_begun(self.member, self.incarnation):
            self.world.submit(self.member, encode_entry(mine))
            yield 0.5
        yield from self.until_visible(self.path.chain.tail_gid)
        self.ready = True

    def _tick(self) -> Steps:
        while True:
            yield 0.25
            self.path.outbox.tick(self.world.now)
            self.carry_out()
            self.server.flushed = min(
                len(self.server.applied), self.server.flushed + self.world.rng.randint(0, 4)
            )

    # ---- writers -----------------------------------------------------------------------------

    def until_visible(self, gid: int) -> Steps:
        """Wait until a GID is visible here, which is repaired if need be."""
        reached: list[bool] = []
        self.path.chain.when_settled(gid, lambda: reached.append(True))
        self.asked = True
        yield lambda: bool(reached)

    def _schema(self) -> int:
        """The newest version of the schema."""
        versions = self.server.versions.get(SCHEMA)
        return versions[-1][1] if versions else 0

    def _apply(self) -> Steps:
        batches = self.path.batches
        while True:
            yield lambda: batches.ready_in_s(self.world.now) is not None
            yield (batches.ready_in_s(self.world.now) or 0.0) + 1e-6  # time must go on
            work = batches.pop_ready(self.world.now)
            if work is None:
                continue
            predecessor = work.predecessor
            if predecessor is not None and predecessor.gid > self.path.chain.settled_gid:
                self.at_work[APPLIER] = work.link.gid
                yield self.ended(predecessor.xid)
                if self.server.status.get(predecessor.xid) != "committed":
                    yield from self._repair(predecessor)
            yield from self._work_off(work)

    def _work_off(self, work: Work) -> Steps:
        link, batches = work.link, self.path.batches
        if work.fresh_catalog:
            self._catalog = self._schema()
        yield from self._write(APPLIER, link.gid, link.prev, *self._contents(work))
        if isinstance(work.task, RunDdl):
            self._catalog = self._schema()
        if batches.finish_item(work):
            old, new = batches.pass_token(work)
            self.server.tokens.discard(old)
            self.server.tokens.add(new)
            batches.hold_next()
        self.carry_out()

    def _contents(self, work: Work) -> tuple[list[int], dict[int, int], bool]:
        """What an item writes: GIDs, rows, and whether it is a command."""
        task, gid = work.task, work.link.gid
        if task is None:
            rows = [row for _, items in work.writesets for row in _rows(items)]
            return work.gids, dict(rows), False
        assert isinstance(task, (RunDdl, ApplyPieces))
        if isinstance(task, RunDdl):
            return [gid], dict(rows_of(task.writeset.body)), True
        return [gid], self._rows_of_pieces(task.writeset, task.first, gid), False

    def _rows_of_pieces(self, writeset: Writeset, first: int, last: int) -> dict[int, int]:
        pieces = self.world.pieces_of(writeset, first, last)
        rows = (rows_of(piece.data) for piece in pieces if not piece.flags & PIECE_KEYS)
        return {row: value for part in rows for row, value in part}

    def _write(
        self,
        pid: int,
        gid: int,
        prev: int,
        gids: Sequence[int],
        rows: dict[int, int],
        command: bool,
    ) -> Steps:
        """Write a link as one transaction of a writer, whom the deadlock detector spares."""
        self.at_work[pid] = gid
        yield self._locked(pid, TABLE, EXCLUSIVE if command else SHARED)
        for row in sorted(rows):
            yield self._locked(pid, row, EXCLUSIVE)
        yield self.world.rng.uniform(0.0, 0.03)
        expected = {row: value for one in gids for row, value in self._ordered(one).items()}
        if rows != expected:
            raise Violation(f"rows: {gids} write {rows} and not {expected}")
        if not command and self._catalog != self._schema():
            raise Violation(f"rows: {gids} are written with the catalog of {self._catalog}")
        if not self.server.show(gid, prev, gids, rows):
            raise Violation(f"once: GID {gid} is written a second time")
        self.server.release(pid)
        self.at_work.pop(pid, None)

    def _ordered(self, gid: int) -> dict[int, int]:
        if gid not in self.world.contents:
            raise Violation(f"once: {gid} is written, and did not commit")
        return self.world.contents[gid]

    def _locked(self, pid: int, key: Key, mode: str) -> Callable[[], bool]:
        return lambda: self.server.lock(pid, key, mode)

    def _settle(self) -> Steps:
        chain = self.path.chain
        while True:
            due_s = self.world.now + 0.5
            self.asked = False
            yield lambda: self.asked or self.world.now >= due_s  # noqa: B023 - asked at once
            xids = [link.xid for link in chain.locals()]
            statuses = {xid: self.server.status.get(xid, "aborted") for xid in xids}
            chain.settle_to(self.server.last_gid)
            while (link := chain.next_to_repair(statuses)) is not None:
                yield from self._repair(link)
            if chain.wanted_gid > chain.settled_gid:
                yield 0.01
                self.asked = True

    def _repair(self, link: LocalLink) -> Steps:
        chain, writeset = self.path.chain, link.writeset
        yield from self.until_visible(link.prev)
        yield lambda: not self.repairing
        self.repairing = True
        if link.gid > chain.settled_gid:
            if writeset.flags & FLAG_PIECES:
                rows = self._rows_of_pieces(writeset, link.pieces_from, link.gid)
            else:
                rows = dict(rows_of(writeset.body))
            command = bool(writeset.flags & FLAG_DDL)
            catalog, self._catalog = self._catalog, self._schema()  # a repair reads it anew
            yield from self._write(REPAIR, link.gid, link.prev, [link.gid], rows, command)
            self._catalog = catalog
            chain.settle_to(link.gid)
        self.repairing = False

    def ended(self, xid: int) -> Callable[[], bool]:
        """Whether a transaction has ended, to be asked again and again."""
        return lambda: self.server.status.get(xid) != "in progress"

    # ---- the lock watcher --------------------------------------------------------------------

    def _watch(self) -> Steps:
        victims, world = self.path.victims, self.world
        while True:
            yield 0.05
            waiting = victims.waiting(self.at_work, world.now)
            if not waiting:
                victims.clear()
                continue
            blockers = list(self._blockers(waiting))
            yield world.rng.uniform(0.0, 0.01)
            for order in victims.judge(blockers, waiting, self.at_work, world.now):
                self._execute(order)

    def _blockers(self, waiting: Iterable[int]) -> Iterator[Blocker]:
        """All in the way of these, and in the way of those, and so on, as the server tells it."""
        now = self.world.now
        by_pid = {client.pid: client for client in self.clients}
        for waiter in waiting:
            seen, left = {waiter}, self.server.blockers(waiter)
            while left:
                pid = left.pop()
                client = by_pid.get(pid)
                if pid in seen or client is None:
                    continue
                seen.add(pid)
                left += self.server.blockers(pid)
                idle_s = 0.0 if client.idle_since is None else now - client.idle_since
                waits_s = 0.0 if client.waits_since is None else now - client.waits_since + 1e-6
                yield Blocker(waiter, pid, client.xid, waits_s, idle_s)

    def _execute(self, order: Order) -> None:
        if order.act is Act.REFUSE_PIECES:
            self.path.outbox.pieces.refuse_pieces(order.pid)
            self.carry_out()
            return
        for client in list(self.clients):
            if client.pid == order.pid and client.xid == order.xid:
                if order.act is Act.CANCEL and client.certifying:
                    client.end(Cancelled())
                elif order.act in (Act.TERMINATE, Act.GIVE_WAY):
                    client.end(Terminated())

    def detect_deadlock(self, client: Client, began_s: float) -> None:
        """A session has waited for a lock for some time: does it wait for itself?"""
        if client.waits_since == began_s and self.server.in_deadlock(client.pid, self._token_of):
            client.end(DeadlockDetected())

    def _token_of(self, pid: int) -> list[int]:
        """Whom a session waits for in its COMMIT, or a writer for its predecessor."""
        for client in self.clients:
            if client.pid == pid and client.predecessor is not None:
                link = client.predecessor
                return [APPLIER] if isinstance(link, BatchLink) else [link.pid]
        return []

    # ---- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        """Check what must hold on this node after each event.

        Raises:
            Violation: it does not.
        """
        written = self.server.written
        new = len(written) != self._checked
        self._checked = len(written)
        if new and written != self.world.committed[: len(written)]:
            raise Violation(f"once: member {self.member} has written {written[-5:]}")
        if not self.up:
            return
        paused = self.path.decider.large is not None
        now_s = self.world.now - self.paused_s
        # Certified ones whose answer names a batch: the first of the chain may be stuck before it.
        certified = {one.transaction.xid for one in self.path._deferred}
        for client in self.clients:
            bound_s = BOUND_S + (STUCK_S if client.xid in certified else 0)
            if client.asked_s is not None and not paused and now_s - client.asked_s > bound_s:
                raise Violation(f"answered: xid {client.xid} of member {self.member} waits")
        links = self.path.chain._links
        numbers = [link.number for link in links if isinstance(link, BatchLink)]
        if len(numbers) != len(set(numbers)):
            raise Violation(f"token: {numbers} of member {self.member}")


def rows_of(body: bytes) -> list[tuple[int, int]]:
    """Rows and values in a body of the model: its records are "D(row,value)"."""
    return list(_rows(decode_body(body)))


def _rows(items: Iterable[Item]) -> Iterator[tuple[int, int]]:
    for _, _, records in items:
        for record in records:
            row, _, value = record[2:-1].partition(",")
            yield int(row), int(value)
