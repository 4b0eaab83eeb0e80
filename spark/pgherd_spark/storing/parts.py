"""Files with the rows of a table: written by tasks, checked by others, never half there.

A part holds a range of blocks of one file of a table, as PostgreSQL's own COPY, compressed by zstd:
in binary form, or as text where a type of the table has no binary form. It appears in the store
when it is whole, and then a receipt is written beside it: a part without one is nobody's. The rows
are copied by ``psql``, since taking them through Python one by one costs three times as much; their
checksum is computed by the server from the same snapshot.
"""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import zstandard
from psycopg import sql

from pgherd_spark.reading import statements
from pgherd_spark.reading.checksums import Part, Sum, blocks, total
from pgherd_spark.reading.pace import paced
from pgherd_spark.reading.rowhash import KIND
from pgherd_spark.reading.sources import unchanged
from pgherd_spark.storing.stores import Store

_SQL = statements.load("snapshot.sql")
_SESSION = statements.load("session.sql")
_CHUNK = 1 << 20


class PartError(Exception):
    """A part could not be written, or is not what its receipt says."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a part holds.

    Attributes:
        path: its name in the snapshot's store.
        origin: which rows, see ``origin_of``; empty where nobody asks.
        bytes, sha256: of the file.
        sum: of the rows.
    """

    path: str
    origin: str
    bytes: int
    sha256: str
    sum: Sum


@dataclass(frozen=True, slots=True)
class WritePart:
    """A task: which rows, where to, and by which ``psql``."""

    part: Part
    store: Store
    path: str
    psql: Path


class _Counted:
    """A file that knows the hash of what was written to it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.bytes = 0

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Leave it open: it is to be put on stable storage by whoever opened it."""


class _Hashed:
    """A file that knows the hash of what was read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.hash.update(data)
        return data


def origin_of(part: Part) -> str:
    """Which rows a part holds: the member, its file of them, the blocks of that file; how summed.

    Another run may divide a table otherwise, or read another member, whose rows lie elsewhere.
    """
    relation = part.relation
    file = f"{relation.schema}.{relation.name} {relation.oid}/{relation.filenode}"
    rows = f"{file} [{part.first}, {part.end})"
    return f"{part.source.member} {part.source.visible} {rows} hash {KIND}"


def write_part(task: WritePart) -> Receipt:
    """Write a part, unless an earlier run has written the same rows there.

    Raises:
        PartError: ``psql`` failed; says with which words.
        TableChangedError: the rows at the marker are not there any more.
        psycopg.Error, OSError: the server is gone, the disk is full.
    """
    known = read_receipt(task.store, task.path)
    if known is not None and known.origin == origin_of(task.part):
        return known
    if task.store.size(_receipt_name(task.path)) is not None:
        task.store.delete(_receipt_name(task.path))  # never to be found beside other rows
    rows = total(task.part)
    with task.store.create(task.path) as file:
        written = _copy(task, file)
    receipt = Receipt(
        task.path, origin_of(task.part), written.bytes, written.hash.hexdigest(), rows
    )
    task.store.put(_receipt_name(task.path), json.dumps(asdict(receipt)).encode())
    return receipt


def read_receipt(store: Store, path: str) -> Receipt | None:
    """The receipt of a part that is whole, as far as its size tells; else None.

    Raises:
        OSError: the store fails.
    """
    with suppress(FileNotFoundError):
        fields = json.loads(store.get(_receipt_name(path)))
        receipt = Receipt(**(fields | {"sum": Sum(**fields["sum"])}))
        if store.size(path) == receipt.bytes:
            return receipt
    return None


def verify_part(store: Store, receipt: Receipt) -> None:
    """Read a part back.

    Raises:
        PartError: it is not what was written.
        OSError: it can't be read.
    """
    digest = hashlib.sha256()
    with store.read(receipt.path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != receipt.sha256:
        raise PartError(f"{receipt.path} is not what was written")


def content(store: Store, path: str, sha256: str) -> Iterator[bytes]:
    """What is in a part, decompressed, in chunks; whole only if it ends without an error.

    Args:
        store: the snapshot.
        path: the part's name in it.
        sha256: of the file, in hexadecimal digits.

    Raises:
        PartError: it is missing, or not what was written.
        OSError: it can't be read.
    """
    try:
        with store.read(path) as file:
            hashed = _Hashed(file)
            stream = zstandard.ZstdDecompressor().stream_reader(
                cast(IO[bytes], hashed), read_across_frames=True
            )
            while chunk := stream.read(_CHUNK):
                yield chunk
            while hashed.read(_CHUNK):  # what may follow the last frame
                pass
    except FileNotFoundError as error:
        raise PartError(f"{store} holds no whole snapshot: {path} is missing") from error
    except zstandard.ZstdError as error:
        raise PartError(f"{path} is not what was written: {error}") from error
    if hashed.hash.hexdigest() != sha256:
        raise PartError(f"{path} is not what was written")


def _receipt_name(path: str) -> str:
    return path + ".json"


def _copy(task: WritePart, file: IO[bytes]) -> _Counted:
    """Let ``psql`` copy the rows into a file, compressed."""
    import pyarrow  # noqa: PLC0415 - an extra

    counted = _Counted(file)
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            _command(task), stdout=subprocess.PIPE, stderr=complaints, stdin=subprocess.DEVNULL
        ) as psql,
    ):
        assert psql.stdout is not None
        with pyarrow.CompressedOutputStream(pyarrow.PythonFile(counted, "w"), "zstd") as stream:
            chunks = iter(partial(psql.stdout.read, _CHUNK), b"")
            for chunk in paced(chunks, task.part.share):
                stream.write(chunk)
        if psql.wait() != 0:
            complaints.seek(0)
            words = complaints.read().decode(errors="replace").strip()
            raise PartError(f"{task.part.source.member}, {task.part.table.name}: {words}")
    return counted


def _command(task: WritePart) -> list[str]:
    """One session: the snapshot, the lock that keeps the file as it is, and the rows."""
    part, relation = task.part, task.part.relation
    columns = sql.SQL(", ").join(map(sql.Identifier, part.table.stored))
    same = _do("require_unchanged", unchanged=unchanged(relation))
    steps = [
        _SQL["begin"],
        _SESSION["import"].format(snapshot=sql.Literal(part.source.snapshot)),
        sql.SQL("SET lock_timeout = '60s'"),
        *([_quietly("settings")] if part.table.form == "text" else []),
        _SESSION["lock"].format(relation=relation.identifier),
        _quietly("tables_only"),
        same,
        _SQL["copy"].format(
            columns=columns,
            relation=relation.identifier,
            range=blocks(part.first, part.end),
            form=sql.SQL(part.table.form),
        ),
        same,
    ]
    command = [str(task.psql), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--no-password"]
    for step in steps:
        command += ["--command", step.as_string(None)]
    return [*command, "--dbname", part.source.conninfo]


def _quietly(name: str) -> sql.Composed:
    """A statement of a session, without what it returns."""
    return _do("execute", statement=sql.Literal(_SESSION[name].as_string(None)))


def _do(name: str, **parts: sql.Composable) -> sql.Composed:
    """A block of PL/pgSQL, which prints nothing."""
    return _SQL["do"].format(body=sql.Literal(_SQL[name].format(**parts).as_string(None)))
