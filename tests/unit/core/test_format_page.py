"""The worked example of docs/writeset-format.md is what the code makes."""

from pathlib import Path

from pgherd_sidecar.core.replication.entries import (
    Condition,
    DatabaseState,
    EntryKind,
    Intention,
    Skip,
    Writeset,
    encode_entry,
    iter_entries,
)
from writeset_strategies import groups, key, wire

PAGE = Path(__file__).parents[3] / "docs" / "writeset-format.md"

WRITESET = Writeset(
    member=2,
    incarnation=3,
    sequence=17,
    low_water=16,
    xid=741,
    flags=0,
    keys=wire(groups((1000, [key(5, 2), key(6, 0), key(7, 0)]))),
    body=rb'[["public.t",[20],["U01(1,\"x y\")"]]]',
)
PARTS = [
    (4, "length"),
    (1, "kind"),
    (1, "version"),
    (2, "flags"),
    (2, "member"),
    (4, "incarnation"),
    (8, "sequence"),
    (8, "low water"),
    (8, "xid"),
    (4, "keys length"),
    (8, "keys: base"),
    (8, "n"),
    (8, "row, NO KEY UPDATE"),
    (8, "table, KEY SHARE"),
    (8, "schema, KEY SHARE"),
]


def listing(data: bytes) -> str:
    """The example as the page shows it: a line for each field, then the body."""
    lines = []
    for size, name in PARTS:
        lines.append(f"    {data[:size].hex():<18}{name}")
        data = data[size:]
    lines.append(f"    {'':<18}body, in ASCII: {data.decode()}")
    return "\n".join(lines)


def test_the_example_on_the_page_is_what_the_code_writes() -> None:
    assert listing(encode_entry(WRITESET)) in PAGE.read_text()


def test_the_example_on_the_page_is_read_back() -> None:
    page = PAGE.read_text()
    shown = page[page.index("## Example") :].splitlines()
    fields = [line.split()[0] for line in shown if line.startswith("    ") and "body" not in line]
    (body,) = (line.split("ASCII: ")[1] for line in shown if "body, in ASCII: " in line)
    assert list(iter_entries(bytes.fromhex("".join(fields)) + body.encode())) == [WRITESET]


def test_the_page_numbers_the_kinds_as_the_code_does() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    shown = {row[2].strip(): row[1].strip() for row in rows}
    assert {kind.name: shown.get(kind.name) for kind in EntryKind} == {
        kind.name: str(kind.value) for kind in EntryKind
    }


def test_entries_of_intentions_and_databases_are_the_same_bytes_for_ever() -> None:
    said = DatabaseState(2, Condition.DIVERGED, 26, 29, 1000, 3600, 1, "PH001 in rows")
    assert encode_entry(said).hex() == (
        "00000035080100000002010100000000"
        "0000001a000000000000001d00000000"
        "000003e800000e10" + b"PH001 in rows".hex()
    )
    assert encode_entry(Skip(29)).hex() == "0000001009010000000000000000001d"
    intended = encode_entry(Intention(2, 3, 741, bytes(7) + b"\x0b"))
    assert intended.hex() == "0000001e07010000000200000003" + f"{741:016x}" + f"{11:016x}"
