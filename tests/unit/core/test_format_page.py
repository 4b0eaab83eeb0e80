"""The worked example of docs/writeset-format.md is what the code makes."""

from pathlib import Path

from pgherd_sidecar.core.entries import Writeset, encode_entry, iter_entries
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
