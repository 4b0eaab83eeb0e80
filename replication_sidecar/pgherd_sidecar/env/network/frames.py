"""What two members exchange before the log's messages, and how messages are cut out of a stream.

A frame is its length (4 bytes, big-endian) and so many bytes. The first frame of a connection, in
each direction, is a ``Hello`` in JSON: it tells a member of another cluster, or of another version,
apart before anything else is read. Of what later frames hold only the version is known here.

Nothing survives a connection.
"""

from struct import Struct

import msgspec

from pgherd_sidecar.core.consensus import Identity
from pgherd_sidecar.core.consensus.model.codec import VERSION

PROTOCOL_VERSION = VERSION
HELLO_BYTES = 1024
"""A stranger cannot make us expect more than this."""

NO_MEMBER = "-"
"""In ``Hello.yours``."""

_LENGTH = Struct(">I")


class FrameError(Exception):
    """The peer sends what no member of this cluster sends; close the connection."""


class Hello(msgspec.Struct, frozen=True):
    """Who is at this end of the connection.

    Attributes:
        version: of everything after the hello.
        cluster_id: a member of another cluster is refused.
        name: the member's name, unique in its cluster.
        number: the member's number, unique in its cluster.
        disk: identity of the disk its log is on, empty if that is not told.
        certification_keys: bound of the certification state; verdicts depend on it.
        slots: by which sequences are interleaved.
        known: position of the newest membership in the sender's log.
        member: that membership names the sender, with this disk.
        left: in an answer, the other end was a member and is none any more.
        refused: in an answer, why the other end was refused; empty if it is welcome.
        yours: on which disk the sender knows the member with the receiver's name: empty if that is
            not known, ``NO_MEMBER`` if it knows of no such member.
        successor: the cluster that the sender has consented to become one of, empty if it has not.
    """

    version: int
    cluster_id: str
    name: str
    number: int
    disk: str = ""
    certification_keys: int = 0
    slots: int = 0
    known: int = 0
    member: bool = False
    left: bool = False
    refused: str = ""
    yours: str = ""
    successor: str = msgspec.field(default="", name="parting")  # its name to other releases

    def encode(self) -> bytes:
        """Return the frame."""
        return b"".join(to_frame([msgspec.json.encode(self)]))

    @classmethod
    def decode(cls, data: bytes) -> "Hello":
        """Return the hello in a frame's content.

        Raises:
            FrameError: it is none.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise FrameError(f"no hello: {error}") from error

    @property
    def identity(self) -> Identity:
        """What decides whether the sender is let in."""
        return Identity(
            self.cluster_id,
            self.name,
            self.disk,
            self.certification_keys,
            self.slots,
            self.known,
            self.member,
            self.version,
            self.successor,
        )


def to_frame(pieces: list[bytes]) -> list[bytes]:
    """Return the pieces of one frame, its length in front; no large piece is copied."""
    length = _LENGTH.pack(sum(map(len, pieces)))
    return [length + pieces[0], *pieces[1:]]


class FrameReader:
    """Cuts a stream of bytes into the contents of its frames.

    Args:
        max_bytes: largest frame expected; may be changed between frames.
    """

    __slots__ = ("_needed", "_parts", "_parts_bytes", "max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._needed = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that ``data`` completes.

        Raises:
            FrameError: a frame is larger than ``max_bytes``; nothing can be read after that.
        """
        if self._parts:
            self._parts.append(data)
            self._parts_bytes += len(data)
            if self._parts_bytes < self._needed:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        frames, offset = [], 0
        self._needed = _LENGTH.size
        while len(data) - offset >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, offset)
            if size > self.max_bytes:
                raise FrameError(f"frame of {size} bytes, at most {self.max_bytes} are expected")
            end = offset + _LENGTH.size + size
            if end > len(data):
                self._needed = end - offset
                break
            frames.append(data[offset + _LENGTH.size : end])
            offset = end
        if offset < len(data):
            self._parts.append(data[offset:])
            self._parts_bytes = len(data) - offset
        return frames
