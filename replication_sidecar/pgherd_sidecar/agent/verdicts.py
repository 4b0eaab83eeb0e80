"""Which entries of the log committed: what a reader of the log can't see by itself (change stream).

Verdicts are a function of the log, but only of all of it: who begins in the middle would have to
certify from a checkpoint on. So each member remembers the verdicts of what its log still holds, one
byte each, told in order as entries are delivered. After a restart they come again from the newest
checkpoint on; those before it are in a file that is written just before the checkpoint is.

Filled by ``session``, written and trimmed by ``upkeep``, read by ``changes``.
"""

import json
import zlib
from contextlib import suppress
from pathlib import Path

from pgherd_sidecar.env import durable

FILE = "verdicts"
_COMMITTED, _NOT = ord("1"), ord("0")


class Verdicts:
    """The verdicts of consecutive positions.

    Attributes:
        first: the first position that is known; everything from there on to the last one is.
    """

    def __init__(self, first: int = 1, known: bytes = b"") -> None:
        self.first = first
        self._known = bytearray(known)

    @property
    def last(self) -> int:
        """The last position that is known; ``first - 1`` if none is."""
        return self.first + len(self._known) - 1

    def note(self, position: int, *, committed: bool) -> None:
        """Remember one; those that are delivered again are known. After a gap nothing else is."""
        if self.first <= position <= self.last:
            return
        if position != self.last + 1:
            self.first = position
            self._known.clear()
        self._known.append(_COMMITTED if committed else _NOT)

    def between(self, first: int, last: int) -> str:
        """A '1' for each position that committed, '0' for each other; all of them are known."""
        return self._known[first - self.first : last - self.first + 1].decode()

    def forget(self, before: int) -> None:
        """Forget what comes before a position."""
        gone = min(max(before - self.first, 0), len(self._known))
        del self._known[:gone]
        self.first += gone

    def pack(self) -> bytes:
        """The file's content, not compressed yet: that takes time, and can be done elsewhere."""
        return bytes(self._known)


def write(directory: Path, first: int, known: bytes) -> None:
    """Replace the file.

    Args:
        directory: the sidecar's.
        first, known: of a ``Verdicts``.

    Raises:
        OSError: it can't be written.
    """
    head = json.dumps({"first": first, "count": len(known), "crc": zlib.crc32(known, first)})
    durable.replace(directory, FILE, head.encode() + b"\n" + zlib.compress(known, 1))


def load(directory: Path) -> Verdicts:
    """What the file says; nothing if there is none, or if it is damaged."""
    with suppress(FileNotFoundError, ValueError, KeyError, zlib.error):
        head, _, packed = (directory / FILE).read_bytes().partition(b"\n")
        known, said = zlib.decompress(packed), json.loads(head)
        if (len(known), zlib.crc32(known, said["first"])) == (said["count"], said["crc"]):
            return Verdicts(said["first"], known)
    return Verdicts()
