"""The replicated state machine: every member runs it over the same log and decides the same.

``ReplicatedState.deliver`` takes the committed entries in log order and says what each one means:
a writeset commits, aborts, is a copy of an earlier one, or can no longer commit. The state is a
function of the log alone: no clock, no configuration of a single member, no randomness (C17). Two
members at the same position even have equal checkpoints, byte by byte.

Who may be an origin is said by the log too: a member that has left is none from there on, and does
not hold the horizon. What is remembered of it is its newest incarnation, for as long as the cluster
lives: its number may be given again, its identities and tokens must not.

Memory is bounded: about 100 MB for the certification index at its limit (``certifier``), and up
to ``dedup.VERDICTS_LIMIT`` verdicts of about 200 bytes for each member, far fewer as long as the
members move their low-water marks.

A transaction that would lose for ever declares its keys beforehand (``intentions``).

A transaction that is too large for one writeset comes in pieces before it (``pieces``). Its
writeset is decided with an ``Examination`` of the pieces' keys, which the caller reads from the log
and feeds in steps; meanwhile it delivers nothing.

It does not order, apply or store anything, and it does not know which entries are local. It
survives a restart through ``checkpoint`` and ``restore``; the entries after the checkpoint's
position are delivered again.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from pgherd_sidecar.core.certification.certifier import (
    INDEX_LIMIT,
    AbortReason,
    Certifier,
    Conflict,
)
from pgherd_sidecar.core.certification.dedup import FirstVerdict, Origin
from pgherd_sidecar.core.certification.examination import Examination, preview
from pgherd_sidecar.core.replication import checkpoint as frame
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.core.replication.entries import (
    FLAG_PIECES,
    DatabaseState,
    Entry,
    Incarnation,
    Intention,
    Marker,
    Members,
    Noop,
    Piece,
    Publish,
    Skip,
    Writeset,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.intentions import Declared, Intentions
from pgherd_sidecar.core.replication.pieces import OPEN_POSITIONS, OpenPieces, OpenTransaction


class DecisionKind(Enum):
    """What a delivered entry means for the database."""

    #: The writeset commits at its GID, on every member.
    COMMIT = "commit"
    #: The writeset lost; ``conflict`` says against what.
    ABORT = "abort"
    #: The herd takes no writes: the writeset has no effect, on any member (``databases``).
    REFUSED = "refused"
    #: A copy of a writeset decided before: do nothing; ``first_gid`` and ``conflict`` repeat the
    #: first verdict (it committed if ``conflict`` is None).
    DUPLICATE = "duplicate"
    #: The log had ruled this writeset or piece out before: its incarnation is superseded, or its
    #: origin has declared it resolved (then it may be a late copy of one that committed). Or it is
    #: a copy of a piece.
    STALE = "stale"
    #: Not a writeset: the database does not change.
    NOTHING = "nothing"

    __hash__ = object.__hash__  # Enum's own is a call of Python, for each delivered entry


@dataclass(frozen=True, slots=True)
class Decision:
    """The meaning of one delivered entry (see ``DecisionKind`` for the fields)."""

    kind: DecisionKind
    conflict: Conflict | None = None
    first_gid: int = 0


_COMMIT = Decision(DecisionKind.COMMIT)
_STALE = Decision(DecisionKind.STALE)
_NOTHING = Decision(DecisionKind.NOTHING)
_INCOMPLETE = Conflict(AbortReason.MALFORMED, 0, 0)


class ReplicatedState:
    """Certification index, duplicate table and horizon of the herd at one log position.

    Args:
        members: numbers of the herd's first members; entries of others have no effect.
        index_limit: stamps the certification index may hold; the same on every member.
    """

    __slots__ = (
        "_certifier",
        "_intentions",
        "_origins",
        "_pieces",
        "_retired",
        "databases",
        "position",
    )

    def __init__(self, members: Iterable[int], index_limit: int = INDEX_LIMIT) -> None:
        self.position = 0
        members = tuple(members)
        self._certifier = Certifier(index_limit)
        self.databases = Databases(members)
        self._origins = {member: Origin() for member in sorted(members)}
        self._pieces = OpenPieces()
        self._intentions = Intentions()
        self._retired: dict[int, int] = {}  # number -> newest incarnation of who has left

    @property
    def horizon(self) -> int:
        """A writeset with a base GID below it aborts."""
        return self._certifier.horizon

    @property
    def index_size(self) -> int:
        """Stamps in the certification index."""
        return len(self._certifier)

    @property
    def log_needed_from(self) -> int | None:
        """Position of the oldest piece of a transaction that is not decided; None without one."""
        return self._pieces.oldest

    def is_open(self, member: int, serial: int) -> bool:
        """Whether pieces of this transaction have come, and its end has not."""
        return self._pieces.get(member, serial) is not None

    def intention(self, member: int) -> Declared | None:
        """What a transaction of this member is going to take, if one has said so."""
        return self._intentions.of(member)

    def intended(
        self, member: int, incarnation: int, xid: int, keys: "array[int]"
    ) -> tuple[int, Conflict] | None:
        """See ``Intentions.against``."""
        return self._intentions.against(member, incarnation, xid, keys)

    def incarnation(self, member: int) -> int:
        """The newest incarnation in the log of the member with this number, 0 before its first."""
        origin = self._origins.get(member)
        return self._retired.get(member, 0) if origin is None else origin.incarnation

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of those that may be origins."""
        return tuple(self._origins)

    def has_begun(self, member: int, incarnation: int) -> bool:
        """Whether this is the member's newest incarnation, and not that of who had its number."""
        origin = self._origins.get(member)
        return origin is not None and origin.begun and origin.incarnation == incarnation

    def first_verdict(self, member: int, incarnation: int, sequence: int) -> FirstVerdict | None:
        """The verdict on a writeset of the member's newest incarnation, while remembered.

        Raises:
            KeyError: not a member.
        """
        origin = self._origins[member]
        return None if incarnation != origin.incarnation else origin.first_verdict(sequence)

    def preview(self, keys: "array[int]") -> Conflict | None:
        """Say whether a writeset still waiting to be ordered has already lost (final if so)."""
        return preview(self._certifier, keys)

    def examine(self, writeset: Writeset) -> "tuple[OpenTransaction, Examination] | None":
        """Begin the certification of the next entry, a writeset in pieces.

        Returns:
            What to read from the log, and what takes the keys of its pieces; to be handed to
            ``deliver`` then. None if it does not take them to decide.
        """
        if self.databases.hold is not None or self._known(writeset) is not None:
            return None
        body = pieces_body(writeset.body)
        transaction = self._pieces.get(writeset.member, body.serial)
        if transaction is None or transaction.pieces != body.pieces:
            return None
        return transaction, Examination(self._certifier, self.position + 1)

    def deliver(
        self,
        gid: int,
        entry: Entry,
        keys: "array[int] | None" = None,
        examination: Examination | None = None,
    ) -> Decision:
        """Advance by one committed entry.

        Args:
            gid: the entry's position, one above the last delivered one.
            entry: the entry.
            keys: the ``key_array`` of a writeset, if the caller has it already.
            examination: of a writeset in pieces, as `examine` returned it, with all keys.

        Returns:
            What it means for the database: the same on every member.
        """
        assert gid == self.position + 1, f"entry {gid} delivered after {self.position}"
        self.position = gid
        decision = self._take(gid, entry, keys, examination)
        if self._pieces:  # the rows of an open one were locked before its first piece
            self._pieces.expire(max(self._certifier.horizon, gid - OPEN_POSITIONS), entry)
        return decision

    def _take(
        self,
        gid: int,
        entry: Entry,
        keys: "array[int] | None",
        examination: Examination | None,
    ) -> Decision:
        match entry:
            case Writeset():
                if entry.flags & FLAG_PIECES:
                    return self._decide_pieces(gid, entry, examination)
                return self._decide(gid, entry, key_array(entry.keys) if keys is None else keys)
            case Piece():
                return self._take_piece(gid, entry)
            case Incarnation():
                self._start_incarnation(entry)
            case Publish():
                self._publish(entry)
            case Members():
                self._install(entry.numbers)
                self.databases.install(gid, entry.numbers)
            case Intention():
                if self.has_begun(entry.member, entry.incarnation):
                    self._intentions.take_intention(gid, entry)
            case DatabaseState():
                self.databases.take_state(gid, entry)
            case Skip():
                self.databases.skip(gid, entry)
            case Noop() | Marker():
                pass
            case _:
                assert_never(entry)
        return _NOTHING

    def _start_incarnation(self, entry: Incarnation) -> None:
        origin = self._origins.get(entry.member)
        if origin is not None and entry.incarnation > origin.incarnation:
            origin.start_incarnation(entry.incarnation)
            self._pieces.forget_member(entry.member)
            self._intentions.forget_member(entry.member)

    def _take_piece(self, gid: int, piece: Piece) -> Decision:
        origin = self._origins.get(piece.member)
        if origin is None or piece.incarnation != origin.incarnation or not origin.begun:
            return _STALE
        return _NOTHING if self._pieces.take_piece(gid, piece) else _STALE

    def _decide(self, gid: int, writeset: Writeset, keys: "array[int]") -> Decision:
        known = self._known(writeset)
        if known is not None:
            return known
        excluded = self._intentions.settle_writeset(writeset, keys) if self._intentions else None
        if self.databases.hold is not None:
            return self._refused(gid, writeset)
        if excluded is None:
            conflict = self._certifier.certify(gid, keys)
        else:
            conflict = self._certifier.check(gid, keys) or excluded
        return self._decided(gid, writeset, conflict)

    def _decide_pieces(
        self, gid: int, writeset: Writeset, examination: Examination | None
    ) -> Decision:
        known = self._known(writeset)
        if known is not None:
            return known
        excluded = None
        if self._intentions:
            taken = array("q") if examination is None else examination.collected
            excluded = self._intentions.settle_writeset(writeset, taken)
        serial = pieces_body(writeset.body).serial
        if self.databases.hold is not None:
            self._pieces.end_transaction(writeset.member, serial)
            return self._refused(gid, writeset)
        if self._pieces.get(writeset.member, serial) is None:
            conflict: Conflict | None = Conflict(AbortReason.TOO_OLD, 0, self._certifier.horizon)
        elif examination is None:
            conflict = _INCOMPLETE
        else:
            conflict = examination.conflict or excluded
            if conflict is None:
                self._certifier.record_many(examination.collected, gid)
        self._pieces.end_transaction(writeset.member, serial)
        return self._decided(gid, writeset, conflict)

    def _known(self, writeset: Writeset) -> Decision | None:
        """What the log has said about a writeset before, None if it is to be decided now."""
        origin = self._origins.get(writeset.member)
        if origin is None or origin.excludes(writeset.incarnation, writeset.sequence):
            return _STALE
        first = origin.first_verdict(writeset.sequence)
        if first is not None:
            return Decision(DecisionKind.DUPLICATE, first.conflict, first.gid)
        return None

    def _refused(self, gid: int, writeset: Writeset) -> Decision:
        """Refuse it for good, also a copy that comes when the herd takes writes again."""
        assert self.databases.hold is not None
        conflict = Conflict(AbortReason.HELD, 0, self.databases.hold.since)
        self._decided(gid, writeset, conflict)
        return Decision(DecisionKind.REFUSED, conflict)

    def _decided(self, gid: int, writeset: Writeset, conflict: Conflict | None) -> Decision:
        origin = self._origins[writeset.member]
        origin.decided(writeset.sequence, FirstVerdict(gid, conflict))
        origin.raise_low_water(min(writeset.low_water, writeset.sequence))
        return _COMMIT if conflict is None else Decision(DecisionKind.ABORT, conflict)

    def _publish(self, entry: Publish) -> None:
        if entry.member in self._origins:
            self._origins[entry.member].published = entry.base
            self._release()

    def _release(self) -> None:
        if self._origins:
            oldest = min(origin.published for origin in self._origins.values())
            self._certifier.release(oldest)

    def _install(self, numbers: tuple[int, ...]) -> None:
        """Keep, begin and drop origins.

        A member that begins here has no transaction older than this position: it opens for writes
        after it has delivered it.
        """
        former, self._origins = self._origins, {}
        for number in numbers:
            origin = former.pop(number, None)
            if origin is None:
                origin = Origin.succeeding(self._retired.pop(number, 0), self.position)
            self._origins[number] = origin
        self._retired |= {number: origin.incarnation for number, origin in former.items()}
        for number in former:
            self._pieces.forget_member(number)
            self._intentions.forget_member(number)
        self._release()

    def checkpoint(self) -> bytes:
        """The whole state with version and checksum; equal on all members at equal positions.

        Takes 16 bytes for each stamp. Blocks for about 0.25 s per million stamps that are new
        since the last checkpoint, and 0.05 s per million old ones: take checkpoints often.
        """
        members = array("q", self._origins)
        origins = [origin.dump() for origin in self._origins.values()]
        head = array("q", [self.position])
        retired = array("q")
        for number in sorted(self._retired):
            retired.extend((number, self._retired[number]))
        parts = [
            self._intentions.dump(),
            *self._pieces.dump(),
            self.databases.dump(),
            *origins,
            *self._certifier.dump(),
        ]
        return frame.pack([head, members, retired, *parts])

    @classmethod
    def restore(cls, data: bytes) -> "ReplicatedState":
        """Rebuild the state at the checkpoint's position.

        Raises:
            CheckpointError: damaged or cut off.
            CheckpointVersionError: of another version.
        """
        arrays = frame.unpack(data)
        head, members, retired, intentions, newest, open_pieces, databases, *rest = arrays
        state = cls(members)
        (state.position,) = head
        state._retired = dict(zip(retired[::2], retired[1::2], strict=True))
        state._intentions = Intentions.load(intentions)
        state._pieces = OpenPieces.load(newest, open_pieces)
        state.databases = Databases.load(databases)
        for number, numbers in zip(members, rest, strict=False):
            state._origins[number] = Origin.load(numbers)
        state._certifier = Certifier.load(rest[len(members) :])
        return state


__all__ = [
    "AbortReason",
    "Conflict",
    "Decision",
    "DecisionKind",
    "Examination",
    "FirstVerdict",
    "OpenTransaction",
    "ReplicatedState",
]
