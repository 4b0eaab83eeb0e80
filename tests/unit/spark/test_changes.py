"""How the log becomes changes: which columns values are of, who is asked, what is left out."""

import asyncio
import json
from typing import cast

import pytest
from msgspec import structs
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import ChangedTables, TableColumns
from pgherd_sidecar.client.stream import changelog
from pgherd_sidecar.client.stream.changelog import ChangeLog
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
    Marker,
    Piece,
    Writeset,
    encode_entry,
)
from pgherd_sidecar.core.replication.merge import decode_body


def table(gid: int, *columns: str, name: str = "public.t") -> TableColumns:
    types = tuple("text" for _ in columns)
    return TableColumns(table=name, gid=gid, columns=columns, types=types, key=columns[:1])


def writeset(*items: tuple[str, list[str]], flags: int = 0) -> Writeset:
    body = json.dumps([[name, [0] * len(records), records] for name, records in items])
    return Writeset(2, 1, 1, 1, 700, flags, b"", body.encode())


def taken_apart(gid: int, found: Writeset, shapes: Shapes) -> list[LoggedChange]:
    return list(changes_of(gid, found, decode_body(found.body), shapes))


def command(*rels: str) -> tuple[str, list[str]]:
    return "", [json.dumps({"sql": "ALTER", "rels": rels})]


class Member:
    """Holds a log of one writeset an entry, of which those with an even GID committed."""

    def __init__(self, end: int, begin: int = 0, *, up: bool = True) -> None:
        self.end, self.begin, self.up = end, begin, up
        self.held: list[tuple[str, int, float]] = []

    async def read_changes(self, after: int, max_bytes: int) -> bytes:
        if not self.up:
            raise AdminError("POST /changes/read: Connection refused")
        if after < self.begin:
            raise AdminError("gone", 409, f"the log begins at position {self.begin + 1} here")
        through = min(after + max_bytes, self.end)
        entries = [encode_entry(Marker(bytes(16)))] if after > 0 else []  # its block begins earlier
        first = after if after > 0 else 1
        entries += [
            encode_entry(writeset(("public.t", [f"I({gid},x)"])))
            for gid in range(after + 1, through + 1)
        ]
        head = {
            "through": max(through, after),
            "visible": self.end,
            "blocks": [(first, sum(map(len, entries)))] if through > after else [],
            "committed": "".join("01"[gid % 2 == 0] for gid in range(after + 1, through + 1)),
            "pieces": {},
        }
        return json.dumps(head).encode() + b"\n" + b"".join(entries)

    async def changed_tables(self) -> ChangedTables:
        return ChangedTables(visible=self.end, tables=[table(1, "id", "v")])

    async def hold_changes(self, stream: str, after: int, lease_s: float) -> None:
        if not self.up:
            raise AdminError("POST /changes/hold: Connection refused")
        self.held.append((stream, after, lease_s))


class Large:
    """Holds a log of one entry a block: pieces of two transactions, and writesets that end them."""

    def __init__(self, *entries: Entry, pieces: dict[int, int]) -> None:
        self._entries = entries
        self._pieces = pieces
        self.reads: list[int] = []

    async def read_changes(self, after: int, max_bytes: int) -> bytes:
        self.reads.append(after)
        through = min(after + max_bytes, len(self._entries))
        encoded = [encode_entry(entry) for entry in self._entries[after:through]]
        found = range(after + 1, through + 1)
        head = {
            "through": through,
            "visible": len(self._entries),
            "blocks": [(gid, len(one)) for gid, one in zip(found, encoded, strict=True)],
            "committed": "".join("01"[gid in self._pieces] for gid in found),
            "pieces": {gid: first for gid, first in self._pieces.items() if gid in found},
        }
        return json.dumps(head).encode() + b"\n" + b"".join(encoded)

    async def changed_tables(self) -> ChangedTables:
        return ChangedTables(visible=len(self._entries), tables=[table(1, "id", "v")])


def piece(serial: int, number: int, *ids: int, flags: int = 0) -> Piece:
    rows = json.dumps([["public.t", [0] * len(ids), [f"I({one},x)" for one in ids]]])
    return Piece(2, 1, serial, number, flags, b"" if flags & PIECE_KEYS else rows.encode())


def end(serial: int, pieces: int) -> Writeset:
    body = json.dumps([serial, pieces, ["public.t"]])
    return Writeset(2, 1, serial, 1, 700 + serial, FLAG_PIECES, b"", body.encode())


def log(*members: Member | Large) -> ChangeLog:
    return ChangeLog([cast(AdminClient, member) for member in members])


def test_each_record_has_the_columns_that_its_table_had_when_it_was_written() -> None:
    shapes = Shapes([table(3, "id", "a"), table(9, "id", "a", "b"), table(9, "id", "c")])
    (before,) = taken_apart(5, writeset(("public.t", ["U01(1,x)"])), shapes)
    assert (before.op, before.key, before.values) == ("update", {"id": "1"}, {"a": "x"})
    (after,) = taken_apart(10, writeset(("public.t", ["D(1,)"])), shapes)
    assert (after.op, after.key, after.values) == ("delete", {"id": "1"}, None)
    (inserted,) = taken_apart(10, writeset(("public.t", ['I(1,"")'])), shapes)
    assert inserted.values == {"id": "1", "c": ""}
    with pytest.raises(ChangesError, match=r"the columns of public\.t at GID 2 are not known"):
        taken_apart(2, writeset(("public.t", ["I(1,2)"])), shapes)


def test_commands_in_the_middle_of_a_transaction_change_the_columns_of_what_follows() -> None:
    shapes = Shapes([table(3, "id", "a"), table(9, "id", "b"), table(9, "id", "c")])
    rows = ("public.t", ["U01(1,x)"])
    both = writeset(rows, command("public.t"), rows, command("public.t"), rows, flags=FLAG_DDL)
    found = taken_apart(9, both, shapes)
    assert [one.values for one in found] == [{"a": "x"}, None, {"b": "x"}, None, {"c": "x"}]
    assert [one.number for one in found] == [0, 1, 2, 3, 4]
    assert [one.op for one in found][1] == "command"
    # A command that leaves the columns alone (an index, say) is one more than there are columns.
    more = writeset(command("public.t"), command("public.t"), command("public.t"), rows)
    assert [one.values for one in taken_apart(9, more, shapes)][-1] == {"c": "x"}


def test_rows_of_a_table_made_by_a_query_and_truncations() -> None:
    shapes = Shapes([table(9, "id", "a", "twice").model_copy(update={"generated": ("twice",)})])
    fill = json.dumps({"fill": "public.t", "rows": ["(1,x,)", "(2,,)"]})
    found = list(taken_apart(9, writeset(("", [fill]), ("public.t", ["T"])), shapes))
    assert [(one.table, one.op) for one in found] == [
        ("public.t", "insert"),
        ("public.t", "insert"),
        ("public.t", "truncate"),
    ]
    assert found[1].values == {"id": "2", "a": None}


async def test_what_did_not_commit_or_was_not_asked_for_is_left_out() -> None:
    member = Member(end=7)
    (first,) = [one async for one in log(member).portions(0, 3)]
    assert ([one.gid for one in first.changes], first.through, first.visible) == ([2], 3, 7)
    rest = [one.gid async for some in log(member).between(3, 6) for one in some]
    assert rest == [4, 6]


async def test_many_changes_are_handed_out_as_they_are_decoded_and_others_run_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (whole,) = [one async for one in log(Member(9)).portions(0)]
    monkeypatch.setattr(changelog, "_PORTION", 2)
    monkeypatch.setattr(changelog, "_BREATH", 1)
    ran = 0

    async def count() -> None:
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    found = [one async for one in log(Member(9)).portions(0)]
    other.cancel()
    assert [(one.through, [two.gid for two in one.changes]) for one in found] == [
        (4, [2, 4]),
        (8, [6, 8]),
        (9, []),
    ]
    assert [change for one in found for change in one.changes] == whole.changes
    assert ran >= len(whole.changes)


async def test_transactions_in_pieces_come_at_their_commit_piece_by_piece() -> None:
    whole = piece(2, 2, 20, 21)
    half = len(whole.data) // 2
    member = Large(
        Marker(bytes(16)),
        piece(1, 0, flags=PIECE_KEYS),
        piece(2, 0, flags=PIECE_KEYS),
        piece(1, 1, 10),
        piece(1, 1, 10),  # a copy
        piece(2, 1, 19),
        piece(3, 0, 30),  # of one that is never decided
        piece(1, 2, 11, 12),
        end(1, 3),
        structs.replace(whole, data=whole.data[:half], flags=PIECE_MORE),
        structs.replace(whole, number=3, data=whole.data[half:]),
        end(2, 4),
        pieces={9: 2, 12: 3},
    )
    everything = [
        (one.gid, one.number, one.xid, (one.key or {})["id"])
        async for some in log(member).between(0, 12)
        for one in some
    ]
    assert everything == [
        *[(9, number, 701, row) for number, row in enumerate(("10", "11", "12"))],
        *[(12, number, 702, row) for number, row in enumerate(("19", "20", "21"))],
    ]
    middle = [one async for some in log(member).between(8, 9) for one in some]
    assert [(one.gid, one.number) for one in middle] == [(9, 0), (9, 1), (9, 2)]
    portions = [one async for one in log(member).portions(8, 1)]
    assert [(one.through, [change.number for change in one.changes]) for one in portions] == [
        (8, []),
        (8, [0]),
        (8, [1, 2]),
        (9, []),
    ]


async def test_pieces_that_the_log_does_not_hold_are_an_error_and_no_transaction() -> None:
    member = Large(piece(1, 0, 10), Marker(bytes(16)), end(1, 2), pieces={3: 1})
    with pytest.raises(ChangesError, match="does not hold all pieces of GID 3"):
        async for _ in log(member).between(0, 3):
            pass


async def test_a_member_that_is_down_or_behind_is_not_waited_for() -> None:
    found = log(Member(9, up=False), Member(4), Member(9))
    assert [one.gid async for some in found.between(1, 9) for one in some] == [2, 4, 6, 8]
    with pytest.raises(ChangesError, match="Connection refused"):
        await log(Member(9, up=False)).visible()


async def test_a_position_that_no_member_comes_to_is_waited_for_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changelog, "_WAIT_S", 0)
    found = log(Member(4), Member(4)).between(1, 9)
    with pytest.raises(
        ChangesError, match="none of the 2 members that are asked has come to GID 9"
    ):
        async for _ in found:
            pass


async def test_a_position_that_nobody_holds_any_more_is_said_to_be_lost() -> None:
    found = log(Member(9, begin=5), Member(9)).portions(3)
    assert [one.through async for one in found] == [9]
    with pytest.raises(PositionLostError, match="the log begins at position 6 here"):
        await anext(log(Member(9, begin=5), Member(9, up=False)).portions(3))


async def test_all_members_that_answer_hold_the_log() -> None:
    up, down = Member(9), Member(9, up=False)
    await log(down, up).hold("lake", 5, 60)
    assert up.held == [("lake", 5, 60)]
    with pytest.raises(ChangesError):
        await log(down).hold("lake", 5, 60)
