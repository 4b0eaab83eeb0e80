"""Transactions that are sent in pieces and not decided yet: part of the replicated state.

A piece counts if it is the next one of its transaction; any other is a copy, or came too late. A
transaction ends with its writeset, when its origin gives it up, begins anew, or leaves, and when it
is too old. Serials rise within an incarnation and are never opened twice, so that no late copy of a
first piece opens what has ended.

Only positions are kept here: what the pieces hold is read from the log, which must not be trimmed
beyond ``oldest``. It survives a restart through ``dump`` and ``load``.
"""

from array import array
from dataclasses import dataclass
from typing import Final

from pgherd_sidecar.core.replication.entries import PIECE_KEYS, PIECE_LAST, Entry, Piece, Writeset

OPEN_POSITIONS: Final = 1_000_000
"""A transaction is too old when so many positions come after its first piece: part of the format,
since verdicts depend on it."""
OPEN_BYTES: Final = 16 << 30
"""Or when the entries from its first piece on hold so many bytes: the log is kept for it."""

_FIELDS = 6


@dataclass(slots=True)
class OpenTransaction:
    """What has come of one transaction.

    Attributes:
        first: position of its first piece.
        after_bytes: what ``OpenPieces`` had counted before it.
        pieces: how many have come.
        key_pieces: how many of them hold keys; these come first.
    """

    first: int
    after_bytes: int
    pieces: int = 0
    key_pieces: int = 0


class OpenPieces:
    """The open transactions of all origins, each in its newest incarnation."""

    __slots__ = ("_bytes", "_newest", "_open")

    def __init__(self) -> None:
        self._bytes = 0  # of the entries that came while any was open
        self._open: dict[tuple[int, int], OpenTransaction] = {}  # oldest first, by member, serial
        self._newest: dict[int, int] = {}  # member -> newest serial

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    @property
    def oldest(self) -> int | None:
        """Position of the oldest piece that may still be needed."""
        return next((one.first for one in self._open.values()), None)

    def get(self, member: int, serial: int) -> OpenTransaction | None:
        """An open transaction, None if there is no such one."""
        return self._open.get((member, serial))

    def take_piece(self, gid: int, piece: Piece) -> bool:
        """Account for a piece of its member's newest incarnation; False if it does not count."""
        identity = piece.member, piece.serial
        one = self._open.get(identity)
        if piece.serial > self._newest.get(piece.member, 0):
            self._newest[piece.member] = piece.serial
            one = self._open[identity] = OpenTransaction(gid, self._bytes)
        if piece.flags & PIECE_LAST:
            self._open.pop(identity, None)
            return one is not None
        if one is None or piece.number != one.pieces:
            return False
        if piece.flags & PIECE_KEYS:
            if one.key_pieces < one.pieces:
                return False
            one.key_pieces += 1
        one.pieces += 1
        return True

    def expire(self, position: int, entry: Entry) -> None:
        """Drop what is too old after an entry: it began at a position or before, or long ago."""
        self._bytes += _bytes_of(entry)
        while self._open:
            identity, one = next(iter(self._open.items()))
            if one.first > position and self._bytes - one.after_bytes <= OPEN_BYTES:
                return
            del self._open[identity]

    def end_transaction(self, member: int, serial: int) -> None:
        """The transaction is decided."""
        self._open.pop((member, serial), None)

    def forget_member(self, member: int) -> None:
        """The member begins anew, or has left."""
        self._newest.pop(member, None)
        for identity in [identity for identity in self._open if identity[0] == member]:
            del self._open[identity]

    def dump(self) -> "list[array[int]]":
        """Everything as int64 arrays, for a checkpoint (equal state, equal arrays)."""
        newest, transactions = array("q"), array("q", [self._bytes])
        for member in sorted(self._newest):
            newest.extend((member, self._newest[member]))
        for identity in sorted(self._open):
            one = self._open[identity]
            transactions.extend((*identity, one.first, one.after_bytes, one.pieces, one.key_pieces))
        return [newest, transactions]

    @classmethod
    def load(cls, newest: "array[int]", transactions: "array[int]") -> "OpenPieces":
        """Rebuild what ``dump`` returned.

        Raises:
            ValueError: the arrays have another shape.
        """
        pieces = cls()
        pieces._newest = dict(zip(newest[::2], newest[1::2], strict=True))
        fields = iter(transactions)
        pieces._bytes = next(fields, 0)
        ordered = sorted(zip(*[fields] * _FIELDS, strict=True), key=lambda one: one[2])
        for member, serial, *numbers in ordered:
            pieces._open[member, serial] = OpenTransaction(*numbers)
        return pieces


def _bytes_of(entry: Entry) -> int:
    if isinstance(entry, Piece):
        return len(entry.data)
    return len(entry.keys) + len(entry.body) if isinstance(entry, Writeset) else 0
