"""The questions that members ask each other about a part of the tables, and how they travel.

A request and an answer travel as a marker that is addressed to no member, which a member of an
earlier version ignores.
"""

from enum import StrEnum

import msgspec

from pgherd_sidecar.core.replication.entries import Marker

ADDRESS = "pgherd scrub"
"""In place of the name of a member."""


class Kind(StrEnum):
    """The kinds of subjects."""

    NAMES = "names"
    """All tables and their columns."""
    RANGE = "range"
    """The rows of a range of keys, as one sum; all rows without a key."""
    KEYS = "keys"
    """The same row by row."""
    ROWS = "rows"
    """Some rows by their keys."""
    INDEX = "index"
    """An index against its table; each member compares its own."""


class Purpose(StrEnum):
    """Why it is asked for."""

    SCAN = "scan"
    LIST = "list"
    CONFIRM = "confirm"
    RECHECK = "recheck"


class Outcome(StrEnum):
    """How it went on one member."""

    READ = "read"
    ABSENT = "absent"
    CHANGED = "changed"
    BUSY = "busy"
    FAILED = "failed"


Key = tuple[str, ...]


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the tables.

    Attributes:
        table: its name.
        after, until: keys; the first is outside. None is before, or behind, all of them.
        keys: of rows, as JSON.
        index: its name.
    """

    kind: Kind
    table: str = ""
    after: Key | None = None
    until: Key | None = None
    keys: tuple[str, ...] = ()
    index: str = ""


class Request(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Asks for a part.

    Attributes:
        id: unique.
        number: of the pass.
        began_s, ends_s: of the pass, on the clock of who asks: when it began, and is to be over.
        at_s: when it is asked for, likewise.
        ranged: the rows of the subject can be told by key.
        scanned: the part of the pass that this belongs to; None for a recheck.
    """

    id: str
    purpose: Purpose
    subject: Subject
    number: int
    began_s: float
    ends_s: float
    at_s: float
    ranged: bool = False
    scanned: Subject | None = None


class Answer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The findings of one member.

    Attributes:
        id: of the request.
        found: checksums, by key where rows are told one by one; of an index, what is wrong.
        rows: how many were read.
        work_s: how long a session of the member's server worked.
        note: why it failed.
    """

    id: str
    member: int
    name: str
    outcome: Outcome
    found: dict[str, str] = {}
    rows: int = 0
    work_s: float = 0.0
    note: str = ""


def encode_message(message: Request | Answer, identity: bytes) -> Marker:
    """Put a message into a marker; ``identity`` is its 16 bytes."""
    return Marker(identity, (ADDRESS, msgspec.json.encode(message).decode()))


def decode_message(marker: Marker) -> Request | Answer | None:
    """Take a message out of a marker; None if there is none that this version understands."""
    if len(marker.names) != 2 or marker.names[0] != ADDRESS:
        return None
    try:
        message: Request | Answer = _DECODER.decode(marker.names[1])
    except msgspec.DecodeError:
        return None
    return message


_DECODER = msgspec.json.Decoder(Request | Answer)
