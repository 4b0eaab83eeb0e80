"""The table of contents of an archive of ``pg_dump``, read and written.

Bytes in, bytes out. It stands at the beginning of an archive in custom format, before all data, and
is the file ``toc.dat`` of one in directory format. Known are the versions 1.14 to 1.16, of
PostgreSQL 12 to 18: ``src/bin/pg_dump/pg_backup_archiver.c`` of PostgreSQL's sources is their only
description.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

_MAGIC = b"PGDMP"
_OLDEST, _NEWEST = (1, 14), (1, 16)
_COMPRESSION_BY_NAME, _WITH_KIND = (1, 15), (1, 16)
_CUSTOM, _FILES = 1, 3
"""``toc.dat`` of a directory says that it is of the tar format, which also names files."""
_DATE_PARTS = 7


class UnknownArchiveError(ValueError):
    """It is no archive, or of a version that is not known here."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, as the archive has it.

    Attributes:
        number: by which others depend on it.
        head: whether it has data, and its oids, as they are.
        tag: its name.
        kind: like ``TABLE`` or ``SEQUENCE SET``.
        section: when it is restored.
        definition: SQL that makes it.
        middle: SQL that drops it, and that copies its rows.
        schema: its schema, empty if it has none.
        tail: tablespace, access method, owner, as they are.
        depends_on: numbers of others.
        place: of its data, as it is.
    """

    number: int
    head: bytes
    tag: bytes | None
    kind: bytes | None
    section: int
    definition: bytes | None
    middle: bytes
    schema: bytes | None
    tail: bytes
    depends_on: tuple[bytes, ...]
    place: bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """All of them, behind what an archive begins with."""

    preamble: bytes
    int_bytes: int
    entries: tuple[Entry, ...]


class _ArchiveReader:
    """Reads what ``pg_dump`` writes, and remembers the bytes."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._seen = bytearray()
        self.int_bytes = 4

    def exactly(self, number: int) -> bytes:
        found = b""
        while len(found) < number:
            more = self._read(number - len(found))
            if not more:
                raise UnknownArchiveError("the archive ends in the middle of its contents")
            found += more
        self._seen += found
        return found

    def byte(self) -> int:
        return self.exactly(1)[0]

    def integer(self) -> int:
        negative, *rest = self.exactly(1 + self.int_bytes)
        size = int.from_bytes(bytes(rest), "little")
        return -size if negative else size

    def string(self) -> bytes | None:
        size = self.integer()
        return None if size < 0 else self.exactly(size)

    def taken(self) -> bytes:
        """What was read since this was last asked for."""
        found = bytes(self._seen)
        self._seen.clear()
        return found


def read(source: Callable[[int], bytes]) -> Contents:
    """Read contents, and nothing that comes after them.

    Args:
        source: returns so many bytes at most, none at the end.

    Raises:
        UnknownArchiveError: it is none that is known here.
    """
    reader = _ArchiveReader(source)
    if reader.exactly(len(_MAGIC)) != _MAGIC:
        raise UnknownArchiveError("it does not begin as an archive of pg_dump does")
    version = (reader.byte(), reader.byte())
    if not _OLDEST <= version <= _NEWEST:
        raise UnknownArchiveError(f"its format is {version[0]}.{version[1]}")
    reader.byte()  # revision
    reader.int_bytes = reader.byte()
    offset_bytes, layout = reader.byte(), reader.byte()
    if layout not in (_CUSTOM, _FILES):
        raise UnknownArchiveError("it is neither in custom nor in directory format")
    if version >= _COMPRESSION_BY_NAME:
        reader.byte()
    else:
        reader.integer()
    for _ in range(_DATE_PARTS):
        reader.integer()
    for _ in ("database", "version of the server", "version of pg_dump"):
        reader.string()
    preamble = reader.taken()
    count = reader.integer()
    reader.taken()

    def place() -> None:
        if layout == _CUSTOM:
            reader.exactly(1 + offset_bytes)
        else:
            reader.string()

    entries = tuple(_entry(reader, version, place) for _ in range(count))
    return Contents(preamble, reader.int_bytes, entries)


def _entry(reader: _ArchiveReader, version: tuple[int, int], place: Callable[[], None]) -> Entry:
    number = reader.integer()
    reader.taken()
    reader.integer()  # whether it has data
    reader.string(), reader.string()  # oids of its catalog and of itself
    head = reader.taken()
    tag, kind, section, definition = (
        reader.string(),
        reader.string(),
        reader.integer(),
        reader.string(),
    )
    reader.taken()
    reader.string(), reader.string()
    middle = reader.taken()
    schema = reader.string()
    reader.taken()
    reader.string(), reader.string()
    if version >= _WITH_KIND:
        reader.integer()
    reader.string(), reader.string()  # owner, and whether its rows have oids
    tail = reader.taken()
    depends_on: list[bytes] = []
    while (other := reader.string()) is not None:
        depends_on.append(other)
    reader.taken()
    place()
    return Entry(
        number, head, tag, kind, section, definition, middle, schema, tail, tuple(depends_on),
        reader.taken(),
    )  # fmt: skip


def write(contents: Contents) -> bytes:
    """Return contents as ``pg_dump`` would write them."""
    found = [contents.preamble, _int(len(contents.entries), contents.int_bytes)]
    for entry in contents.entries:
        found += _written(entry, contents.int_bytes)
    return b"".join(found)


def _written(entry: Entry, size: int) -> Iterable[bytes]:
    yield _int(entry.number, size)
    yield entry.head
    yield _string(entry.tag, size)
    yield _string(entry.kind, size)
    yield _int(entry.section, size)
    yield _string(entry.definition, size)
    yield entry.middle
    yield _string(entry.schema, size)
    yield entry.tail
    for other in (*entry.depends_on, None):
        yield _string(other, size)
    yield entry.place


def _int(value: int, size: int) -> bytes:
    return bytes([value < 0]) + abs(value).to_bytes(size, "little")


def _string(value: bytes | None, size: int) -> bytes:
    return _int(-1, size) if value is None else _int(len(value), size) + value
