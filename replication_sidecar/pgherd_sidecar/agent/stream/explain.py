"""Shows what an entry of the log is: for people who want to know why a database stopped at it.

Everything is told from this member's own log and the verdicts it remembers, so a member whose
database has stopped can tell it, too. It looks through the log once more to find what an aborted
writeset lost against. Values of rows are told only to who asks for them: they may be private.

It keeps nothing.
"""

import asyncio
import json
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

import msgspec

from pgherd_sidecar.agent.admin.port import Refused, StatusValue, Unavailable
from pgherd_sidecar.agent.apply.piecereader import PieceReader
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.log.setup import delivered
from pgherd_sidecar.core.certification.certifier import LockMode
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    PIECE_MORE,
    Entry,
    EntryFormatError,
    Writeset,
    iter_entries,
    key_array,
    pieces_body,
)
from pgherd_sidecar.core.replication.merge import Item, Op, decode_body
from pgherd_sidecar.env.storage.segments import StorageDamaged
from pgherd_sidecar.pg.ddl.commands import kind_of

KEYS_MAX: Final = 1000
ROWS_MAX: Final = 1000
_READ_BYTES: Final = 1 << 20
_SEARCH_BYTES: Final = 256 << 20
_MODE_BITS: Final = 3
_DONE: Final = {
    Op.INSERT: "inserted",
    Op.UPDATE: "updated",
    Op.DELETE: "deleted",
    Op.ERASE: "erased",
    Op.REPLACE: "replaced",
    Op.TRUNCATE: "truncated",
}
_OPS: Final = {op.value: op for op in Op}

TableHashes = Callable[[], Awaitable[Mapping[int, str]]]
"""Names by the hashes that stand for them in keys, of all tables; none where nobody can tell."""


class Explainer:
    """Tells of entries.

    Args:
        host: the log.
        verdicts: of its entries; None where none are made.
        hashes: asks the server which table a key is of.
    """

    def __init__(self, host: LogHost, verdicts: Verdicts | None, hashes: TableHashes) -> None:
        self._host = host
        self._verdicts = verdicts
        self._hashes = hashes

    async def explain(self, gid: int, *, rows: bool) -> dict[str, StatusValue]:
        """Tell what is known of the entry at a position.

        Args:
            gid: the position.
            rows: with the values of rows.

        Raises:
            Refused: there is none, or none any more.
            Unavailable: a part of the log is damaged here, and is being mended.
        """
        first, last = self._host.extent.base + 1, self._host.commit_position
        if gid > last:
            raise Refused(f"GID {gid} has not been ordered yet: the log ends at GID {last}")
        if gid < first:
            raise Refused(f"GID {gid} is not in the log any more: it begins at GID {first} here")
        hashes = await self._hashes()
        try:
            return await asyncio.to_thread(self._tell, gid, rows=rows, hashes=hashes)
        except StorageDamaged as error:
            self._host.reader.damaged(error.position)
            raise Unavailable("a part of the log is damaged here, and is being repaired") from error

    def _tell(self, gid: int, *, rows: bool, hashes: Mapping[int, str]) -> dict[str, StatusValue]:
        try:
            entry = next(entry for at, entry, _ in self._entries(gid, gid) if at == gid)
        except EntryFormatError as error:
            return {"gid": gid, "kind": "unreadable", "error": str(error)}
        except StopIteration:
            raise Refused(f"GID {gid} is not in the log any more") from None
        told: dict[str, StatusValue] = {"gid": gid, "kind": type(entry).__name__.lower()}
        if not isinstance(entry, Writeset):
            return told | _small(entry)
        told |= {
            "token": f"{entry.member}.{entry.incarnation}.{entry.xid}",
            "origin": entry.member,
            "incarnation": entry.incarnation,
            "sequence": entry.sequence,
            "xid": entry.xid,
            "ddl": bool(entry.flags & FLAG_DDL),
            "bytes": len(entry.keys) + len(entry.body),
        }
        verdict = self._verdict(gid)
        told["verdict"] = verdict
        try:
            self._tell_content(told, gid, entry, rows=rows, hashes=hashes)
        except (EntryFormatError, msgspec.DecodeError, ValueError) as error:
            told["error"] = f"its content can't be read: {error}"
        if verdict == "did not commit":
            told |= self._lost_against(gid, entry)
        return told

    def _tell_content(
        self,
        told: dict[str, StatusValue],
        gid: int,
        entry: Writeset,
        *,
        rows: bool,
        hashes: Mapping[int, str],
    ) -> None:
        keys = [key_array(entry.keys)]
        items = [] if entry.flags & FLAG_PIECES else decode_body(entry.body)
        if entry.flags & FLAG_PIECES:
            body = pieces_body(entry.body)
            told["pieces"], told["tables"] = body.pieces, {name: {} for name in body.tables}
            begins = self._verdicts.pieces(gid - 1, gid).get(gid) if self._verdicts else None
            if begins is None:
                return
            told["pieces_from"] = begins
            keys, items = self._pieces(gid, entry, begins)
            told["bytes"] = sum(map(len, keys)) * 8 + sum(
                len(record) for _, _, records in items for record in records
            )
        told["tables"] = _tables(items)
        told["commands"] = [_command(one) for one in _commands(items)]
        told["keys"], told["keys_total"] = _keys(keys, items, hashes)
        if rows:
            told["rows"] = [
                {"table": table, "row": record}
                for table, _, records in items
                if table
                for record in records
            ][:ROWS_MAX]

    def _pieces(
        self, gid: int, entry: Writeset, begins: int
    ) -> "tuple[list[array[int]], list[Item]]":
        """The keys and rows of a transaction in pieces."""
        identity = entry.member, entry.incarnation, pieces_body(entry.body).serial
        reader = PieceReader(self._host.reader, identity, begins)
        keys, items, part, size = [], list[Item](), b"", 0
        while found := reader.next(gid):
            for _, piece in found:
                size += len(piece.data)
                if size > _SEARCH_BYTES:
                    raise ValueError("it is too large to be shown")
                if piece.flags & PIECE_KEYS:
                    keys.append(key_array(piece.data))
                    continue
                part += piece.data
                if not piece.flags & PIECE_MORE:
                    items += decode_body(part)
                    part = b""
        return keys, items

    def _verdict(self, gid: int) -> str:
        known = self._verdicts
        if known is None or not known.first <= gid <= known.last:
            return "unknown"
        return "committed" if known.between(gid, gid) == "1" else "did not commit"

    def _lost_against(self, gid: int, entry: Writeset) -> dict[str, StatusValue]:
        """The newest commit that a writeset conflicts with; empty if there is none in the log."""
        wanted: dict[int, tuple[int, int]] = {}
        lowest = gid
        for base, group in _groups(key_array(entry.keys)):
            lowest = min(lowest, base)
            for key in group:
                before = wanted.get(key | _MODE_BITS, (base, 0))
                mode = max(before[1], key & _MODE_BITS)
                wanted[key | _MODE_BITS] = (min(before[0], base), mode)
        begin = max(lowest, self._host.extent.base) + 1
        winner: dict[str, StatusValue] = {}
        size = 0
        for at, other, bytes_ in self._entries(begin, gid - 1):
            size += bytes_
            if size > _SEARCH_BYTES:
                return {"winner_error": "the log between its base and it is too long to look for"}
            if not isinstance(other, Writeset) or self._verdict(at) != "committed":
                continue
            for _, group in _groups(key_array(other.keys)):
                for key in group:
                    base, mode = wanted.get(key | _MODE_BITS, (gid, 0))
                    if at > base and (key & _MODE_BITS) >= _MODE_BITS - mode:
                        winner = {"winner": at, "winner_key": _hex(key)}
        return winner

    def _entries(self, first: int, last: int) -> Iterator[tuple[int, Entry, int]]:
        """The entries of a range, with the size of the block where one begins."""
        position = first
        while position <= last:
            blocks = self._host.reader.read_back(position, _READ_BYTES)
            if not blocks:
                return
            for block in map(delivered, blocks):
                size = len(block.data)
                for at, entry in enumerate(iter_entries(block.data), block.first):
                    if first <= at <= last:
                        yield at, entry, size
                        size = 0
                position = max(position, block.last + 1)


def _small(entry: Entry) -> dict[str, StatusValue]:
    """The fields of an entry that is no writeset; of bytes only how many there are."""
    told: dict[str, StatusValue] = {}
    for name, value in msgspec.structs.asdict(entry).items():
        if isinstance(value, IntEnum):
            told[name] = value.name.lower()
        elif not isinstance(value, bytes):
            told[name] = list(value) if isinstance(value, tuple) else value
        elif name == "id":
            told[name] = value.hex()
        else:
            told["bytes"] = len(value)
    return told


def _tables(items: Sequence[Item]) -> dict[str, StatusValue]:
    """How many rows of each table the entry changes, by what it does with them."""
    counts: dict[str, Counter[str]] = {}
    for table, _, records in items:
        if table:
            done = (
                _DONE.get(_OPS.get(record[0], Op.INSERT), "?")
                for before, record in pairwise(["", *records])
                if before[:1] + record[0] != "RI"  # what a row has become, not another one
            )
            counts.setdefault(table, Counter()).update(done)
    return {table: dict(count) for table, count in counts.items()}


def _commands(items: Sequence[Item]) -> Iterator[str]:
    for table, _, records in items:
        if not table:
            yield from records


def _command(command: str) -> dict[str, StatusValue]:
    """A command or request without what it holds of rows."""
    told: dict[str, StatusValue] = {"kind": kind_of(command)}
    said: Any = json.loads(command)
    if "fill" in said:
        return told | {"table": said["fill"], "rows": len(said.get("rows", ()))}
    for name in ("sql", "role"):
        if isinstance(said.get(name), str):
            told[name] = said[name]
    return told


def _keys(
    keys: "Sequence[array[int]]", items: Sequence[Item], hashes: Mapping[int, str]
) -> tuple[list[StatusValue], int]:
    """The certification keys, the first of them in words as far as they can be told."""
    known = {key & ~_MODE_BITS: name for key, name in hashes.items()}
    for table, row_keys, _ in items:
        if table:
            known |= {key & ~_MODE_BITS: f"row of {table}" for key in row_keys}
    told: list[StatusValue] = []
    total = 0
    for one in keys:
        for base, group in _groups(one):
            total += len(group)
            told += [
                {
                    "key": _hex(key),
                    "mode": LockMode(key & _MODE_BITS).name.replace("_", " "),
                    "base": base,
                    "of": known.get(key & ~_MODE_BITS, ""),
                }
                for key in group[: max(KEYS_MAX - len(told), 0)]
            ]
    return told, total


def _groups(keys: "array[int]") -> "Iterator[tuple[int, array[int]]]":
    """The groups of keys with their bases, as far as they are well formed."""
    position = 0
    while position + 2 <= len(keys) and 0 <= keys[position + 1] <= len(keys) - position - 2:
        first = position + 2
        end = first + keys[position + 1]
        yield keys[position], keys[first:end]
        position = end


def _hex(key: int) -> str:
    return f"{key & 0xFFFF_FFFF_FFFF_FFFF:016x}"
