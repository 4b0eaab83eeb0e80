"""``pgherd export dump``: ``pg_dump`` of a node, in a form that a plain server loads as its own.

``pg_dump`` writes what the catalog says, and that holds our triggers and the increments by which
numbers are dealt out to members. So it writes an archive, whose contents are edited as they come
by; rows are passed on as they are. SQL text is what ``pg_restore`` makes of the edited archive.

The session is its caller's own, as ``pgherd psql``: root runs PostgreSQL's programs as root.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import psycopg

from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import binaries
from pgherd_sidecar.local import psql as psqls
from pgherd_sidecar.local.export import archive, plaindump
from pgherd_sidecar.local.herd import Herd, HerdNode

Layout = Literal["plain", "custom", "directory"]

_OWN = ("--exclude-schema=pgherd", "--exclude-schema=pgherd_gen", "--no-password")
_TAKEN = {
    "-f": "--to", "--file": "--to", "-F": "--format", "--format": "--format",
    "-d": "NODE", "--dbname": "NODE", "-h": "NODE", "--host": "NODE", "-p": "NODE",
    "--port": "NODE", "-U": "NODE", "--username": "NODE",
}  # fmt: skip
"""Options of pg_dump that say what ours say."""
_OF_TEXT = {
    "-c", "--clean", "-C", "--create", "-O", "--no-owner", "--if-exists", "--disable-triggers",
    "--no-tablespaces", "--use-set-session-authorization", "--no-table-access-method",
}  # fmt: skip
"""What pg_dump does only where it writes text: it is for pg_restore here."""
_FLAGS = "aBbcCOsvx"
"""Options of one letter without a value."""
_CONNECT_S = 10
_SEQUENCES = """
SELECT s.schema, s.name, s.step, s.start, s.value, s.called, s.step * n.slots
  FROM pgherd.plain_sequences(%s::jsonb) s CROSS JOIN pgherd.node n
"""
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Arguments:
    """pg_dump's, and those of them that pg_restore gets where text is written."""

    dump: tuple[str, ...]
    restore: tuple[str, ...]


def arguments(words: Sequence[str], layout: Layout) -> Arguments:
    """Divide what the user has said.

    Raises:
        HerdError: it says what another option says.
    """
    words = [one for word in words for one in _apart(word)]
    dump, restore = [], []
    for word in words:
        name = word.split("=", 1)[0] if word.startswith("--") else word[:2]
        if instead := _TAKEN.get(name):
            raise HerdError(f"{name} is taken: give {instead} to `pgherd export dump`")
        if layout == "plain" and name in ("-Z", "--compress"):
            raise HerdError(f"text is not compressed here: leave {name} out, or give --format")
        if layout == "plain" and word in _OF_TEXT:
            restore.append(word)
        else:
            dump.append(word)
    return Arguments(tuple(dump), tuple(restore))


def _apart(word: str) -> list[str]:
    """Options of one letter that were written together, like ``-Ox``."""
    if len(word) > 2 and word[0] == "-" and set(word[1:]) <= set(_FLAGS):
        return [f"-{letter}" for letter in word[1:]]
    return [word]


async def chosen(description: Herd, name: str | None) -> HerdNode:
    """Return the node of this name or, if there is no name, the first that takes writes.

    Raises:
        HerdError: there is none.
    """
    return psqls.named(description, name) if name else await psqls.writable(description)


def dump(
    description: Herd, member: HerdNode, asked: Arguments, layout: Layout, target: Path | None
) -> None:
    """Dump a node.

    Args:
        description: of the herd.
        member: its server runs.
        asked: what the programs are told besides.
        layout: what is written.
        target: where to; None: standard output.

    Raises:
        HerdError: the target can't be made, or a program has failed.
    """
    if layout == "directory" and target is None:
        raise HerdError("a directory needs a name: give --to")
    if target is not None and target.exists():
        raise HerdError(f"{target} is there already: choose another --to")
    work = _Dump(description, member, asked)
    try:
        if layout == "directory":
            assert target is not None  # as was just checked
            work.into_directory(target)
        elif target is None:
            work.into(sys.stdout.buffer, layout)
        else:
            _whole(target, lambda file: work.into(file, layout))
    except plaindump.ChangedError as error:
        raise HerdError(f"sequence {error} was made or altered meanwhile: repeat it") from error
    except archive.UnknownArchiveError as error:
        raise HerdError(f"what pg_dump has written is not known to pgherd: {error}") from error
    except psycopg.Error as error:
        raise HerdError(f"{member.name} does not tell its sequences: {error}") from error


def _whole(target: Path, fill: Callable[[IO[bytes]], None]) -> None:
    """Write a file, readable by its owner only, whole or not at all."""
    unfinished = target.with_name(f".{target.name}.new")
    unfinished.unlink(missing_ok=True)  # it may be a link to another file
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
            fill(file)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def roles(description: Herd, member: HerdNode, file: IO[bytes]) -> None:
    """Write the roles of a node as pg_dumpall does, without ours.

    Raises:
        HerdError: pg_dumpall has failed.
    """
    program = _programs(description, member) / "pg_dumpall"
    command = [str(program), "--roles-only", "--no-password"]
    environment = _environment(description, member)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    _must("pg_dumpall", done.returncode)
    file.write(plaindump.roles_of_users(done.stdout))
    file.flush()


def _programs(description: Herd, member: HerdNode) -> Path:
    """PostgreSQL's programs; root runs none that the herd's account has named."""
    if os.geteuid() != 0:
        return description.programs_of(member)
    return binaries.find(None, remedy=None)


def _environment(description: Herd, member: HerdNode) -> dict[str, str]:
    return {
        **os.environ,
        **psqls.surroundings(description, member, superuser=True),
        "PGOPTIONS": "-c default_transaction_read_only=off",
    }


class _Dump:
    """One run of pg_dump."""

    def __init__(self, description: Herd, member: HerdNode, asked: Arguments) -> None:
        self._bin = _programs(description, member)
        self._herd = description
        self._member = member
        self._asked = asked
        self._environment = _environment(description, member)

    def into_directory(self, target: Path) -> None:
        """Write an archive in directory format."""
        unfinished = target.with_name(f".{target.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            command = self._pg_dump("--format=directory", f"--file={unfinished}")
            _must("pg_dump", subprocess.run(command, env=self._environment, check=False).returncode)
            toc = unfinished / "toc.dat"
            with toc.open("rb") as file:
                edited = archive.write(self._edited(archive.read(file.read)))
            toc.write_bytes(edited)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def into(self, file: IO[bytes], layout: Layout) -> None:
        """Write an archive in custom format, or text."""
        compressed = () if layout == "custom" else ("--compress=0",)
        command = self._pg_dump("--format=custom", *compressed)
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE) as source:
            assert source.stdout is not None
            try:
                if layout == "custom":
                    self._pass_on(source.stdout, file)
                else:
                    self._as_text(source.stdout, file)
            except BaseException:
                source.kill()
                raise
        _must("pg_dump", source.returncode)

    def _as_text(self, source: IO[bytes], file: IO[bytes]) -> None:
        command = [str(self._bin / "pg_restore"), "--file=-", *self._asked.restore]
        file.flush()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file.fileno()) as text:
            assert text.stdin is not None
            try:
                self._pass_on(source, text.stdin)
                text.stdin.close()
            except BrokenPipeError:
                pass  # it has failed, and said why
            except BaseException:
                text.kill()
                raise
        _must("pg_restore", text.returncode)

    def _pass_on(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Pass an archive on, with its contents edited."""
        try:
            found = archive.read(source.read)
        except archive.UnknownArchiveError:
            if not source.read(1):
                _must("pg_dump", 1)  # it has ended early, and said why
            raise
        target.write(archive.write(self._edited(found)))
        shutil.copyfileobj(source, target, 1 << 20)
        target.flush()

    def _edited(self, found: archive.Contents) -> archive.Contents:
        """The contents for a plain server. ``pg_dump`` has its snapshot: numbers are asked now."""
        edited = plaindump.plain(found, self._sequences())
        if named := plaindump.mentions(edited):
            more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            progress(
                f"{', '.join(named[:_NAMED])}{more}: the text speaks of pgherd, which a plain "
                "server has not"
            )
        return edited

    def _sequences(self) -> plaindump.Sequences:
        others = []
        for other in self._herd.writers:
            if other != self._member:
                try:
                    others.append(_standings(self._herd.dsn(other)))
                except psycopg.Error:
                    progress(
                        f"{other.name} does not answer: numbers that it gave out and that are in "
                        "no row are unknown"
                    )
        with psycopg.connect(self._herd.dsn(self._member), connect_timeout=_CONNECT_S) as server:
            return plaindump.by_name(server.execute(_SEQUENCES, (json.dumps(others),)).fetchall())

    def _pg_dump(self, *words: str) -> list[str]:
        return [str(self._bin / "pg_dump"), *_OWN, *words, *self._asked.dump]


def _standings(dsn: str) -> Mapping[str, object]:
    with psycopg.connect(dsn, connect_timeout=_CONNECT_S) as server:
        row = server.execute("SELECT pgherd.sequence_standings()").fetchone()
    return row[0] if row is not None else {}


def _must(program: str, status: int) -> None:
    if status:
        raise HerdError(f"{program} has failed: its own words are above")
