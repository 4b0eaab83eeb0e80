"""Reads the ordered log of a herd as changes, at any member, by its admin API.

The log is the same everywhere, so what was begun at one member can be gone on with at another; a
position is a GID, and reading again gives the same. The pieces of a large transaction are read once
more when its commit is met, and handed out one after the other: no more than a few are in memory.

Used by ``datasource`` and by ``pgherd changes``; needs no Spark. Keeps nothing.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.stream.changes import (
    ChangesError,
    LoggedChange,
    PositionLostError,
    Shapes,
    changes_of,
)
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    PIECE_MORE,
    Entry,
    Piece,
    Writeset,
    iter_entries,
    pieces_body,
)
from pgherd_sidecar.core.replication.merge import decode_body

_GONE = 409
_PAUSE_S = 0.1
_WAIT_S = 300.0
"""For a member to come to a position that some member has handed out."""
_READ_BYTES = 4 << 20
_PORTION = 1000
_BREATH = 250
"""So many changes are decoded at a stretch."""
_NOWHERE = 1 << 62
"""A position that no log will ever reach."""

Answer = TypeVar("Answer")


def _deadline() -> float:
    return asyncio.get_running_loop().time() + _WAIT_S


@dataclass(frozen=True, slots=True)
class Portion:
    """Some changes, which follow those of the portion before.

    Attributes:
        through: all changes up to this GID have been handed out with it, and some of the next
            transaction if that is a large one.
        visible: how far there are more.
        changes: in their order.
    """

    through: int
    visible: int
    changes: list[LoggedChange]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a member hands out of the log after a position: see the sidecar's ``Chunk``."""

    after: int
    through: int
    visible: int
    committed: str
    pieces: dict[int, int]
    blocks: list[tuple[int, int]]
    data: bytes

    @classmethod
    def of(cls, after: int, content: bytes) -> "_Chunk":
        """Decode it."""
        head, _, data = content.partition(b"\n")
        said = json.loads(head)
        pieces = {int(gid): first for gid, first in said["pieces"].items()}
        return cls(
            after, said["through"], said["visible"], said["committed"], pieces, said["blocks"], data
        )

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """What was handed out, by position: whole blocks hold more."""
        start = 0
        for first, size in self.blocks:
            for position, entry in enumerate(iter_entries(self.data[start : start + size]), first):
                if self.after < position <= self.through:
                    yield position, entry
            start += size

    def writesets(self) -> Iterator[tuple[int, Writeset]]:
        """Those that committed, by GID."""
        for gid, entry in self.entries():
            if isinstance(entry, Writeset) and self.committed[gid - self.after - 1] == "1":
                yield gid, entry


class ChangeLog:
    """Reads the log of a herd.

    Args:
        members: their admin APIs; whoever answers is asked.
    """

    def __init__(self, members: Sequence[AdminClient]) -> None:
        self._members = list(members)
        self._shapes: Shapes | None = None

    async def portions(
        self, after: int, max_bytes: int = _READ_BYTES
    ) -> AsyncGenerator[Portion, None]:
        """The changes of the next blocks of the log, at least one block; none if there is no more.

        They are handed out as they are decoded, a thousand or so at a time. Now and then others may
        do something meanwhile.

        Args:
            after: a GID.
            max_bytes: to read at a time, more or less.

        Raises:
            ChangesError: nobody answers.
            PositionLostError: what follows ``after`` is not there any more.
        """
        chunk = await self._read(after, max_bytes)
        committed = list(chunk.writesets())
        if self._shapes is None or any(one.flags & FLAG_DDL for _, one in committed):
            self._shapes = await self._read_shapes(chunk.through)
        changes: list[LoggedChange] = []
        breath = _BREATH
        for gid, writeset in committed:
            if writeset.flags & FLAG_PIECES:
                yield Portion(gid - 1, chunk.visible, changes)
                changes, breath = [], _BREATH
                first = chunk.pieces[gid]
                async for some in self._in_pieces(gid, writeset, first, self._shapes, max_bytes):
                    yield Portion(gid - 1, chunk.visible, some)
                continue
            changes += changes_of(gid, writeset, decode_body(writeset.body), self._shapes)
            if len(changes) >= breath:
                await asyncio.sleep(0)
                breath = len(changes) + _BREATH
            if len(changes) >= _PORTION:
                yield Portion(gid, chunk.visible, changes)
                changes, breath = [], _BREATH
        yield Portion(chunk.through, chunk.visible, changes)

    async def _in_pieces(
        self, gid: int, writeset: Writeset, first: int, shapes: Shapes, max_bytes: int
    ) -> AsyncIterator[list[LoggedChange]]:
        """The changes of a transaction of which the first piece is at position ``first``."""
        body = pieces_body(writeset.body)
        identity = writeset.member, writeset.incarnation, body.serial
        position, number, parts, changed = first - 1, 0, list[bytes](), 0
        while number < body.pieces:
            chunk = await self._read_up_to(gid, position, max_bytes)
            for _, piece in chunk.entries():
                if not isinstance(piece, Piece) or piece.number != number:
                    continue  # another entry, or a copy of a piece
                if (piece.member, piece.incarnation, piece.serial) != identity:
                    continue
                number += 1
                if piece.flags & PIECE_KEYS:
                    continue
                parts.append(piece.data)
                if not piece.flags & PIECE_MORE:
                    items = decode_body(b"".join(parts))
                    changes = list(changes_of(gid, writeset, items, shapes, changed))
                    changed += len(changes)
                    yield changes
                    parts = []
            position = chunk.through

    async def _read(self, after: int, max_bytes: int) -> _Chunk:
        return _Chunk.of(after, await self._ask(lambda one: one.read_changes(after, max_bytes)))

    async def _read_up_to(self, gid: int, after: int, max_bytes: int) -> _Chunk:
        """Likewise, of what comes before a GID that some member has handed out already."""
        if after >= gid:
            raise ChangesError(f"the log does not hold all pieces of GID {gid}")
        until_s = _deadline()
        while (chunk := await self._read(after, max_bytes)).through == after:
            await self._try_another(gid, until_s)
        return chunk

    async def _read_shapes(self, through: int) -> Shapes:
        """The columns of tables, from a member that has come so far."""
        until_s = _deadline()
        while True:
            said = await self._ask(lambda one: one.changed_tables())
            if said.visible >= through:
                return Shapes(said.tables)
            await self._try_another(through, until_s)

    async def _try_another(self, gid: int, until_s: float) -> None:
        """Begin with the next member: this one is not so far yet.

        Raises:
            ChangesError: none has come so far for too long: those that had may be gone.
        """
        if asyncio.get_running_loop().time() >= until_s:
            raise ChangesError(
                f"none of the {len(self._members)} members that are asked has come to GID {gid}"
                f" within {_WAIT_S:g} s: see whether others are up that had"
            )
        self._members.append(self._members.pop(0))
        await asyncio.sleep(_PAUSE_S)

    async def visible(self) -> int:
        """The newest position that the first member that answers hands out.

        Raises:
            ChangesError: nobody answers.
        """
        content = await self._ask(lambda one: one.read_changes(_NOWHERE, 1))
        return int(json.loads(content.partition(b"\n")[0])["visible"])

    async def begins(self) -> int:
        """The oldest position that any member that answers hands out; that one is asked first then.

        Raises:
            ChangesError: nobody answers.
        """
        found: list[tuple[int, AdminClient]] = []
        errors = []
        for member in self._members:
            try:
                content = await member.read_changes(_NOWHERE, 1)
            except AdminError as error:
                errors.append(error)
            else:
                found.append((int(json.loads(content.partition(b"\n")[0])["begins"]), member))
        if not found:
            raise _failure(errors)
        oldest, member = min(found, key=lambda one: one[0])
        self._members.remove(member)
        self._members.insert(0, member)
        return oldest

    async def between(self, after: int, through: int) -> AsyncGenerator[list[LoggedChange], None]:
        """All changes after one position up to another, which some member has handed out already.

        Raises:
            ChangesError: nobody answers, or nobody comes so far.
            PositionLostError: what follows ``after`` is not there any more.
        """
        until_s = _deadline()
        while after < through:
            begun = after
            async with aclosing(self.portions(begun)) as portions:
                async for found in portions:
                    after = found.through
                    yield [change for change in found.changes if change.gid <= through]
                    if after >= through:
                        return
            if after == begun:
                await self._try_another(through, until_s)
            else:
                until_s = _deadline()

    async def hold(self, stream: str, after: int, lease_s: float) -> None:
        """Have all members that answer keep the log after a position, for so long from now on.

        Raises:
            ChangesError: nobody answers.
            PositionLostError: none has it.
        """
        errors = []
        for member in self._members:
            try:
                await member.hold_changes(stream, after, lease_s)
            except AdminError as error:
                errors.append(error)
        if len(errors) == len(self._members):
            raise _failure(errors)

    async def _ask(self, what: Callable[[AdminClient], Awaitable[Answer]]) -> Answer:
        """Ask one member after the other; who has answered is asked first the next time."""
        errors = []
        for _ in self._members:
            try:
                return await what(self._members[0])
            except AdminError as error:
                errors.append(error)
                self._members.append(self._members.pop(0))
        raise _failure(errors)


def _failure(errors: Sequence[AdminError]) -> ChangesError:
    gone = [error for error in errors if error.code == _GONE]
    if gone:
        return PositionLostError(gone[0].reason)
    return ChangesError("; ".join(str(error) for error in errors) or "no member was named")
