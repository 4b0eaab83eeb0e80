"""A herd of nodes with the real commit path over model servers and a model of the ordered log.

Everything runs in virtual time in one process. Clients (``sim_clients``) read and update rows at
both isolation levels, run commands and large transactions, think too long and vanish. Each node
(``sim_sidecar``) has an applier, the repair of transactions, and the lock watcher. Submissions are
lost, doubled and held up; sessions, sidecars and servers die. After each event the invariants are
checked:

* *order*: links become visible in GID order, each after its predecessor;
* *once*: the writesets that are written on a node are the committed ones, each once, none left out;
* *rows*: what a link writes is what its transaction has written, with the catalog of that moment;
* *told*: nobody is told aborted whose transaction commits, or committed whose does not;
* *answered*: each request is answered once, and no session waits for longer than the bound;
* *token*: no two items of a node have the same batch number while one of them is in the chain;
* *lost*: no transaction commits that has changed, or was captured before, what a later one changed;
* *isolation*: what transactions at REPEATABLE READ have read is one snapshot of the order each;
* *kept*: nothing stays under way or open for ever;
* *progress*: once nothing is disturbed, all nodes become equal.
"""

from array import array
from collections.abc import Iterator
from itertools import count
from random import Random

from checkers import si
from checkers.history import History, Transaction
from model_server import Violation
from pgherd_sidecar.core.commit import batches
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    Entry,
    Piece,
    Writeset,
    iter_entries,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.state import DecisionKind, ReplicatedState
from sim_processes import Clock, Terminated
from sim_sidecar import CLIENTS, STUCK_S, CommitNode, rows_of

WAIT_S = 3.0
QUIET_S = 16.0
"""Longer than anything may be in the way: a transaction that does not commit is, for 10 s."""
_LEAVE_S = 4.0
MEMBERS = (1, 2, 3)

Token = tuple[int, int, int]


class CommitWorld(Clock):
    """A herd of three; the failure of a run is a Violation."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = rng = Random(seed)
        self.disturbed = True
        self.log: list[Entry] = []
        self.reference = ReplicatedState(MEMBERS)
        self.committed: list[int] = []
        self.contents: dict[int, dict[int, int]] = {}  # by GID: rows and values
        self.verdicts: dict[Token, int] = {}  # GID, 0 if it has lost
        self.told: dict[Token, str] = {}
        self.history: list[Transaction] = []
        self.held_up_until_s = 0.0
        self.writing = MEMBERS if rng.random() < 0.7 else (rng.randint(1, 3),)
        self.window = rng.choice((1, 3, 32))
        self.tokens: list[Token] = []  # of the transactions in the history
        self.values = count(1)
        self._ticks = count(1)
        self._newest: dict[int, int] = {}  # by row: the GID that changed it last
        self.nodes = [CommitNode(self, member) for member in MEMBERS]

    def run(self, duration_s: float) -> None:
        """Disturb the herd for so long, then leave it alone until all nodes are equal.

        Raises:
            Violation: an invariant does not hold.
        """
        window, batches.TOKEN_WINDOW = batches.TOKEN_WINDOW, self.window
        try:
            self.after(self.rng.uniform(0.5, 3.0), self._disturb)
            self._run_until(duration_s)
            self.disturbed = False
            self.heal()
            self._run_until(duration_s + QUIET_S)
            for _ in range(CLIENTS - 1):  # one after the other may be stuck in its commit
                if any(node.server.written != self.committed for node in self.nodes):
                    self._run_until(self.now + STUCK_S)
            self._check_progress()
            for client in [client for node in self.nodes for client in node.clients]:
                client.end(Terminated())  # those that think or work for ever vanish at last
            self._run_until(self.now + _LEAVE_S)
        finally:
            batches.TOKEN_WINDOW = window
        self._check_end()

    def _run_until(self, end_s: float) -> None:
        while self.now < end_s:
            self.advance()
            for node in self.nodes:
                node.check()

    def _check_progress(self) -> None:
        for node in self.nodes:
            if node.server.written != self.committed:
                raise Violation(f"progress: member {node.member} ends at {node.server.last_gid}")
            if not node.ready:
                raise Violation(f"progress: member {node.member} takes no writes")

    def _check_end(self) -> None:
        for node in self.nodes:
            outbox = node.path.outbox
            if outbox.pending or outbox.pieces.open:
                raise Violation(f"kept: {outbox.pending} {outbox.pieces.open} are under way")
            if node.state.log_needed_from is not None:
                raise Violation(f"kept: pieces from {node.state.log_needed_from} on")
        gids = {
            transaction.id: gid
            for transaction in self.history
            if (gid := self.verdicts.get(self.tokens[transaction.id], 0))
        }
        anomalies = si.check(History(tuple(self.history), gids))
        if anomalies:
            raise Violation(f"isolation: {anomalies[0]}")

    # ---- the log -----------------------------------------------------------------------------

    def submit(self, member: int, data: bytes) -> bool:
        """Order entries soon, perhaps twice; some are lost."""
        chance = self.rng.random() if self.disturbed else 1.0
        if chance < 0.05:
            return False
        if chance < 0.08:  # it comes when nobody thinks of it any more
            self.after(self.rng.uniform(0.5, 4.0), self._order, data)
        if chance > 0.1:
            for _ in range(2 if 0.1 < chance < 0.15 else 1):
                self.after(self.rng.uniform(0.001, 0.02), self._order, data)
        return True

    def _order(self, data: bytes) -> None:
        if self.now < self.held_up_until_s:
            self.after(self.held_up_until_s - self.now + 0.001, self._order, data)
            return
        self.learn(data)
        for node in self.nodes:
            self.after(self.rng.expovariate(100), node.deliver)

    def learn(self, data: bytes) -> None:
        """Learn what is ordered next."""
        for entry in iter_entries(data):
            self.log.append(entry)
            self._decide(len(self.log), entry)

    def known_to(self, member: int) -> int:
        """Up to where a member knows the order."""
        return len(self.log)

    def is_primary(self, member: int) -> bool:
        """Whether a member takes itself for one of the primary component."""
        return True

    def begun(self, node: CommitNode) -> None:
        """A sidecar has begun."""

    def ended(self, node: CommitNode) -> None:
        """A sidecar has died."""

    def heal(self) -> None:
        """Let nothing go wrong any more."""

    def _decide(self, gid: int, entry: Entry) -> None:
        """Deliver an entry to the reference, in the plainest way."""
        if not isinstance(entry, Writeset):
            self.reference.deliver(gid, entry)
            return
        examined = self.reference.examine(entry) if entry.flags & FLAG_PIECES else None
        keys, rows = list(_groups(key_array(entry.keys))), []
        if examined is None:
            decision = self.reference.deliver(gid, entry)
            rows = [] if entry.flags & FLAG_PIECES else rows_of(entry.body)
        else:
            opened, examination = examined
            for piece in self.pieces_of(entry, opened.first, gid):
                if piece.flags & PIECE_KEYS:
                    taken = key_array(piece.data)
                    keys += _groups(taken)
                    list(examination.take_groups(taken))
                else:
                    rows += rows_of(piece.data)
            list(examination.find_verdict())
            decision = self.reference.deliver(gid, entry, examination=examination)
        self._note_verdict(gid, entry, decision.kind, keys, dict(rows))

    def pieces_of(self, writeset: Writeset, first: int, last: int) -> Iterator[Piece]:
        """The pieces of a transaction, read back from the log."""
        identity = writeset.member, writeset.incarnation, pieces_body(writeset.body).serial
        number = 0
        for entry in self.log[first - 1 : last]:
            if not isinstance(entry, Piece) or entry.number != number:
                continue
            if (entry.member, entry.incarnation, entry.serial) == identity:
                number += 1
                yield entry

    def _note_verdict(
        self,
        gid: int,
        writeset: Writeset,
        kind: DecisionKind,
        groups: list[tuple[int, list[int]]],
        rows: dict[int, int],
    ) -> None:
        token = (writeset.member, writeset.incarnation, writeset.xid)
        if kind is DecisionKind.COMMIT:
            if self.verdicts.get(token):
                raise Violation(f"once: {token} commits at {self.verdicts[token]} and {gid}")
            self._check_lost(gid, groups)
            self.committed.append(gid)
            self.contents[gid] = rows
            self.verdicts[token] = gid
            self.check_told(token)
        elif kind is DecisionKind.ABORT:
            self.verdicts.setdefault(token, 0)

    def _check_lost(self, gid: int, groups: list[tuple[int, list[int]]]) -> None:
        """What a naive certifier says: keys 4n + mode conflict where the modes sum up to 3."""
        for base, keys in groups:
            for key in keys:
                slot, mode = key >> 2, key & 3
                for held in range(4):
                    newest = self._newest.get(slot * 4 + held, 0)
                    if held + mode >= 3 and newest > base:
                        raise Violation(f"lost: {gid} with base {base} has lost to {newest}")
        for _, keys in groups:
            self._newest |= dict.fromkeys(keys, gid)

    # ---- clients -----------------------------------------------------------------------------

    @property
    def met(self) -> set[str]:
        """What has happened in this world, for the counts of a run."""
        kinds = {FLAG_DDL: "commands", FLAG_PIECES: "large transactions"}
        met = {
            name
            for entry in self.log
            if isinstance(entry, Writeset)
            for flag, name in kinds.items()
            if entry.flags & flag
        }
        return met | {outcome.split()[0] for outcome in self.told.values()}

    def tick(self) -> int:
        """The next number of a counter that all clients share."""
        return next(self._ticks)

    def tell(self, token: Token, outcome: str) -> None:
        """A client is told what became of its transaction."""
        self.told[token] = outcome
        self.check_told(token)

    def ask_status(self, token: Token) -> None:
        """A client that does not know asks any member (``pgherd.transaction_status``)."""
        node = self.rng.choice(self.nodes)
        if node.up:
            outcome = node.path.outcomes.of(".".join(map(str, token)))
            if outcome != "unknown":
                self.tell(token, outcome)

    def check_told(self, token: Token) -> None:
        """Nobody is told aborted who commits.

        Raises:
            Violation: somebody was.
        """
        outcome, gid = self.told.get(token), self.verdicts.get(token, 0)
        if outcome is not None and (outcome == "aborted") == bool(gid) and outcome != "unknown":
            raise Violation(f"told: {token} was told {outcome}, its GID is {gid}")

    # ---- faults ------------------------------------------------------------------------------

    def _disturb(self) -> None:
        if not self.disturbed:
            return
        self.after(self.rng.uniform(0.5, 4.0), self._disturb)
        node = self.rng.choice(self.nodes)
        match self.rng.randrange(5):
            case 0:
                self.held_up_until_s = self.now + self.rng.uniform(0.1, 2 * WAIT_S)
            case 1:
                node.end_sidecar()
            case 2:
                node.crash_server()
            case 3:
                node.kill_session()
            case _:
                node.stalled_until_s = self.now + self.rng.uniform(0.1, 2.0)


def _groups(keys: "array[int]") -> Iterator[tuple[int, list[int]]]:
    """Groups ``base, n, key1 .. keyn``."""
    position = 0
    while position < len(keys):
        first = position + 2
        position = first + keys[position + 1]
        yield keys[first - 2], list(keys[first:position])
