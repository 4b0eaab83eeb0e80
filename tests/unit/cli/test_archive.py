"""Contents of an archive are written as they were read, and what is not known is refused."""

import io

import pytest
from pgherd_sidecar.local.export import archive
from pgherd_sidecar.local.export.archive import UnknownArchiveError

CUSTOM, FILES, TEXT = 1, 3, 4


def number(value: int) -> bytes:
    return bytes([value < 0]) + abs(value).to_bytes(4, "little")


def string(value: bytes | None) -> bytes:
    return number(-1) if value is None else number(len(value)) + value


def entry(  # noqa: PLR0913, PLR0917 - an entry has as many parts
    minor: int, layout: int, dump_id: int, kind: bytes, tag: bytes, definition: bytes,
    schema: bytes | None = b"public", depends_on: tuple[bytes, ...] = (),
) -> bytes:  # fmt: skip
    """As ``WriteToc`` of pg_dump does it."""
    found = number(dump_id) + number(0) + string(b"1259") + string(b"16384") + string(tag)
    found += string(kind) + number(2) + string(definition) + string(b"DROP it;\n") + string(None)
    found += string(schema) + string(None) + string(b"heap")
    found += number(114) if minor >= 16 else b""
    found += string(b"app") + string(b"false")
    found += b"".join(map(string, depends_on)) + string(None)
    return found + (b"\x03" + bytes(8) if layout == CUSTOM else string(b"12.dat.gz"))


def archive_of(minor: int, layout: int, *entries: bytes) -> bytes:
    compression = b"\x01" if minor >= 15 else number(-1)
    head = b"PGDMP" + bytes([1, minor, 0, 4, 8, layout]) + compression
    head += b"".join(number(part) for part in (1, 2, 3, 4, 5, 126, 0))
    head += string(b"app") + string(b"17.2") + string(b"17.2")
    return head + number(len(entries)) + b"".join(entries)


@pytest.mark.parametrize("layout", [CUSTOM, FILES])
@pytest.mark.parametrize("minor", [14, 15, 16])
def test_it_is_written_as_it_was_read_and_nothing_behind_it_is_taken(
    minor: int, layout: int
) -> None:
    original = archive_of(
        minor, layout,
        entry(minor, layout, 7, b"TABLE", b"t", b"CREATE TABLE t();\n"),
        entry(minor, layout, 8, b"COMMENT", b"TABLE t", b"", schema=None, depends_on=(b"7", b"3")),
    )  # fmt: skip
    source = io.BytesIO(original + b"rows")
    found = archive.read(source.read)
    assert [(one.number, one.kind, one.tag, one.schema) for one in found.entries] == [
        (7, b"TABLE", b"t", b"public"), (8, b"COMMENT", b"TABLE t", None),
    ]  # fmt: skip
    assert found.entries[0].definition == b"CREATE TABLE t();\n"
    assert found.entries[1].depends_on == (b"7", b"3")
    assert archive.write(found) == original
    assert source.read() == b"rows"


def test_a_source_that_gives_a_byte_at_a_time_will_do() -> None:
    original = archive_of(14, CUSTOM, entry(14, CUSTOM, 7, b"TABLE", b"t", b"x"))
    source = io.BytesIO(original)
    assert archive.write(archive.read(lambda _: source.read(1))) == original


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"--\n-- PostgreSQL database dump", "does not begin"),
        (archive_of(13, CUSTOM), "1.13"),
        (archive_of(17, CUSTOM), "1.17"),
        (archive_of(15, TEXT), "neither in custom nor in directory"),
        (archive_of(15, CUSTOM)[:-7], "ends in the middle"),
        (
            archive_of(15, CUSTOM, entry(15, CUSTOM, 1, b"TABLE", b"t", b""))[:-1],
            "ends in the middle",
        ),
    ],
)
def test_what_is_not_known_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(UnknownArchiveError, match=told):
        archive.read(io.BytesIO(data).read)
