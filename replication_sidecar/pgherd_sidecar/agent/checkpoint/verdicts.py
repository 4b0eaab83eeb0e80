"""Which entries of the log committed: what a reader of the log can't see by itself (change stream).

Verdicts are a function of the log, but only of all of it: who begins in the middle would have to
certify from a checkpoint on. So each member remembers the verdicts of what its log still holds, one
byte each, told in order as entries are delivered; and where the pieces of a large transaction
begin. After a restart they come again from the newest checkpoint on; those before it are in a file
that is written just before the checkpoint is.

Filled by ``session``, written and trimmed by ``upkeep``, read by ``changes``.
"""

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pgherd_sidecar.env.storage import durable

FILE = "verdicts"
_COMMITTED, _NOT = ord("1"), ord("0")


class Verdicts:
    """The verdicts of consecutive positions.

    Attributes:
        first: the first position that is known; everything from there on to the last one is.
    """

    def __init__(
        self, first: int = 1, known: bytes = b"", pieces: Mapping[int, int] | None = None
    ) -> None:
        self.first = first
        self._known = bytearray(known)
        self._pieces = dict(pieces or {})  # first position of the pieces, by GID

    @property
    def last(self) -> int:
        """The last position that is known; ``first - 1`` if none is."""
        return self.first + len(self._known) - 1

    def note_decision(
        self, position: int, *, committed: bool, pieces_from: int | None = None
    ) -> None:
        """Remember one; those that are delivered again are known. After a gap nothing else is.

        Args:
            position: of the entry.
            committed: whether it did.
            pieces_from: position of the first piece, of a transaction in pieces.
        """
        last = self.last
        if self.first <= position <= last:
            return
        if position != last + 1:
            self.first = position
            self._known.clear()
            self._pieces.clear()
        self._known.append(_COMMITTED if committed else _NOT)
        if committed and pieces_from is not None:
            self._pieces[position] = pieces_from

    def take_back(self, position: int) -> None:
        """Forget the commit there: it was skipped, and has no effect."""
        if self.first <= position <= self.last:
            self._known[position - self.first] = _NOT
            self._pieces.pop(position, None)

    def between(self, first: int, last: int) -> str:
        """A '1' for each position that committed, '0' for each other; all of them are known."""
        return self._known[first - self.first : last - self.first + 1].decode()

    def pieces(self, after: int, through: int) -> dict[int, int]:
        """Where the pieces of large transactions begin that committed in a range, by their GIDs."""
        return {gid: first for gid, first in self._pieces.items() if after < gid <= through}

    def whole_from(self, first: int) -> int:
        """The first position from which on all that committed is whole in a log.

        Args:
            first: where the log begins; of some transactions it may hold the last pieces only.
        """
        broken = (gid for gid, begun in self._pieces.items() if begun < first <= gid)
        return max(broken, default=first - 1) + 1

    def forget_before(self, before: int) -> None:
        """Forget what comes before a position."""
        gone = min(max(before - self.first, 0), len(self._known))
        del self._known[:gone]
        self.first += gone
        self._pieces = self.pieces(before - 1, self.last)

    @property
    def known(self) -> bytes:
        """A '1' or '0' for each position that is known."""
        return bytes(self._known)

    def copy(self) -> "Verdicts":
        """The same as it is now, for a thread."""
        return Verdicts(self.first, self.known, self._pieces)


def write(directory: Path, verdicts: Verdicts) -> None:
    """Replace the file.

    Args:
        directory: the sidecar's.
        verdicts: nobody else's any more.

    Raises:
        OSError: it can't be written.
    """
    body = json.dumps(verdicts.pieces(0, verdicts.last)).encode() + b"\n" + verdicts.known
    head = {"first": verdicts.first, "size": len(body), "crc": zlib.crc32(body, verdicts.first)}
    durable.replace(directory, FILE, json.dumps(head).encode() + b"\n" + zlib.compress(body, 1))


def load(directory: Path) -> Verdicts:
    """Return what the file says; nothing if there is none, or if it is damaged."""
    with suppress(FileNotFoundError, ValueError, KeyError, zlib.error):
        head, _, packed = (directory / FILE).read_bytes().partition(b"\n")
        body, said = zlib.decompress(packed), json.loads(head)
        if (len(body), zlib.crc32(body, said["first"])) == (said["size"], said["crc"]):
            pieces, _, known = body.partition(b"\n")
            begun = {int(gid): first for gid, first in json.loads(pieces).items()}
            return Verdicts(said["first"], known, begun)
    return Verdicts()
