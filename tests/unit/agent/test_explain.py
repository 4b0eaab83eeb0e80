"""What is told of an entry: everything but values of rows, unless somebody asks for them."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.stream.explain import Explainer
from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.core.replication.entries import (
    FLAG_DDL,
    FLAG_PIECES,
    PIECE_KEYS,
    Entry,
    Marker,
    Noop,
    Piece,
    Writeset,
    encode_entry,
)
from pgherd_sidecar.env.storage.segments import StorageDamaged

UPDATE, KEY_SHARE = 3, 0
TABLE, ROW = 100 << 2, 200 << 2


def keys(base: int, *numbers: int) -> bytes:
    return b"".join(n.to_bytes(8, "big", signed=True) for n in (base, len(numbers), *numbers))


def writeset(member: int, base: int, *, row: int = ROW, flags: int = 0, body: Any = None) -> Entry:
    items = body or [["public.t", [row], ["I(1,secret)"]]]
    return Writeset(
        member, 1, 5, 1, 812, flags, keys(base, row | UPDATE, TABLE | KEY_SHARE),
        json.dumps(items).encode(),
    )  # fmt: skip


class Log:
    """The log of a member, of one block for each two entries, from position ``base + 1`` on."""

    def __init__(self, entries: Sequence[Entry], verdicts: str, base: int = 0) -> None:
        self.blocks = []
        for start in range(0, len(entries), 2):
            some = entries[start : start + 2]
            data = b"".join(map(encode_entry, some))
            self.blocks.append(Block.make(1, base + start + 1, len(some), data))
        self.extent = SimpleNamespace(base=base)
        self.commit_position = base + len(entries)
        self.reader = self
        self.broken = False
        self.reported: list[int] = []
        self.verdicts = Verdicts(base + 1, verdicts.encode())

    def read_back(self, position: int, _max_bytes: int) -> Sequence[Block]:
        if self.broken:
            raise StorageDamaged("bad checksum", position)
        return [block for block in self.blocks if block.last >= position]

    def damaged(self, position: int) -> bool:
        self.reported.append(position)
        return True

    async def explain(self, gid: int, *, rows: bool = False) -> dict[str, Any]:
        async def hashes() -> Mapping[int, str]:
            return {TABLE: "table public.t"}

        explainer = Explainer(cast("Any", self), self.verdicts, hashes)
        return cast("dict[str, Any]", await explainer.explain(gid, rows=rows))


async def test_a_writeset_is_told_with_rows_counted_and_keys_in_words() -> None:
    log = Log([Noop(), writeset(2, 0)], "01")
    told = await log.explain(2)
    assert (told["kind"], told["origin"], told["token"]) == ("writeset", 2, "2.1.812")
    assert told["verdict"] == "committed"
    assert told["tables"] == {"public.t": {"inserted": 1}}
    assert [(key["mode"], key["of"], key["base"]) for key in told["keys"]] == [
        ("UPDATE", "row of public.t", 0),
        ("KEY SHARE", "table public.t", 0),
    ]
    assert told["keys_total"] == 2
    assert told["bytes"] > 0
    assert "secret" not in json.dumps(told)


async def test_a_row_that_was_replaced_counts_once() -> None:
    records = ["R(1)", "I(2)", "I(2)", "R(3)", "I(1)", "D(4)"]
    entry = writeset(2, 0, body=[["public.bag", [ROW] * 6, records]])
    told = await Log([Noop(), entry], "01").explain(2)
    assert told["tables"] == {"public.bag": {"replaced": 2, "inserted": 1, "deleted": 1}}


async def test_values_of_rows_are_told_to_who_asks_for_them() -> None:
    told = await Log([writeset(2, 0)], "1").explain(1, rows=True)
    assert told["rows"] == [{"table": "public.t", "row": "I(1,secret)"}]


async def test_the_commit_that_an_aborted_writeset_lost_against_is_found() -> None:
    other = 300 << 2
    entries = [
        writeset(1, 0), writeset(1, 1, row=other), writeset(3, 0), writeset(3, 3, row=other),
        writeset(2, 1),
    ]  # fmt: skip
    log = Log(entries, "11100")
    told = await log.explain(5)
    assert (told["verdict"], told["winner"]) == ("did not commit", 3)
    assert "winner" not in await log.explain(4)  # a copy, say: nothing conflicts
    assert (await log.explain(3))["verdict"] == "committed"


async def test_commands_are_told_with_their_text_and_not_the_rows_that_fill_a_table() -> None:
    command = {"sql": "CREATE UNIQUE INDEX i ON t (v)", "role": "app", "settings": {}}
    fill = {"fill": "public.t2", "rows": ["(1,secret)"]}
    body = [["", [0, 0], [json.dumps(command), json.dumps(fill)]]]
    told = await Log([writeset(1, 0, flags=FLAG_DDL, body=body)], "1").explain(1)
    first, second = told["commands"]
    assert first == {"kind": "CREATE UNIQUE INDEX", "sql": command["sql"], "role": "app"}
    assert (second["table"], second["rows"]) == ("public.t2", 1)
    assert "secret" not in json.dumps(told)
    assert told["ddl"] is True


async def test_a_transaction_in_pieces_is_put_together() -> None:
    rows = json.dumps([["public.t", [ROW, ROW + 4], ["I(1,x)", "D(2,)"]]]).encode()
    end = Writeset(2, 1, 5, 1, 812, FLAG_PIECES, b"", b'[1,2,["public.t"]]')
    log = Log(
        [Piece(2, 1, 1, 0, PIECE_KEYS, keys(0, ROW | UPDATE)), Piece(2, 1, 1, 1, 0, rows), end],
        "00",
    )
    log.verdicts.note_decision(3, committed=True, pieces_from=1)
    told = await log.explain(3)
    assert told["tables"] == {"public.t": {"inserted": 1, "deleted": 1}}
    assert (told["pieces"], told["pieces_from"], told["keys_total"]) == (2, 1, 1)


async def test_other_entries_are_told_by_their_fields() -> None:
    log = Log([Marker(b"x" * 16, ("n1", "n2")), Piece(2, 1, 7, 3, 0, b"secret")], "00")
    marker = await log.explain(1)
    assert (marker["kind"], marker["names"], marker["id"]) == ("marker", ["n1", "n2"], "78" * 16)
    piece = await log.explain(2)
    assert (piece["kind"], piece["serial"], piece["bytes"]) == ("piece", 7, 6)
    assert "secret" not in json.dumps(piece)


async def test_what_is_trimmed_or_not_ordered_yet_is_refused_with_the_bounds() -> None:
    log = Log([writeset(1, 40), writeset(1, 40)], "11", base=40)
    assert (await log.explain(41))["gid"] == 41
    with pytest.raises(Refused, match="not in the log any more: it begins at GID 41"):
        await log.explain(40)
    with pytest.raises(Refused, match="not been ordered yet: the log ends at GID 42"):
        await log.explain(43)


async def test_an_entry_that_cannot_be_read_is_told_as_such() -> None:
    log = Log([writeset(1, 0, body={"not": "items"})], "1")
    assert "can't be read" in (await log.explain(1))["error"]
    block = log.blocks[0]
    newer = bytearray(block.data)
    newer[5] = 99  # the version
    log.blocks[0] = Block.make(1, 1, 1, bytes(newer))
    told = await log.explain(1)
    assert told["kind"] == "unreadable" and "version 99" in told["error"]


async def test_damage_is_reported_and_the_question_may_be_asked_again() -> None:
    log = Log([writeset(1, 0)], "1")
    log.broken = True
    with pytest.raises(Unavailable):
        await log.explain(1)
    assert log.reported


async def test_without_verdicts_the_entry_is_told_all_the_same() -> None:
    log = Log([writeset(1, 0)], "1")
    log.verdicts = Verdicts(7)
    assert (await log.explain(1))["verdict"] == "unknown"
