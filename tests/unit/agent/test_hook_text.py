"""What a client is told about the transaction that it lost against."""

import pytest
from pgherd_sidecar.agent.hook.text import explain
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication.entries import FLAG_FINGERPRINT

LOST = Conflict(reason=AbortReason.CONFLICT, key=20 | 3, winner=7)


@pytest.mark.parametrize(
    ("record", "row"),
    [
        ('U010(1,secret,"b c")', 'Row (1,,"b c")'),
        ("D(1,,x)", "Row (1,,x)"),
        ("E(1,,)", "Row (1,,)"),
        ("R(1,x,)", "Row (1,x,)"),
        ("I(1,secret,2)", "A row"),
    ],
)
def test_the_losing_row_is_named_by_its_key_alone(record: str, row: str) -> None:
    body = f'[["public.t",[16,20],["I(9,9,9)",{json_text(record)}]]]'.encode()
    assert explain(LOST, body)[1] == f"{row} of table public.t, winner GID 7."


def test_a_fingerprint_is_no_table() -> None:
    body = b'[["public.t",[16],["I(9)"]],["=",[0],["[1]"]]]'
    assert explain(LOST, body, FLAG_FINGERPRINT)[1] == (
        "A unique key, foreign key or table lock of public.t, winner GID 7."
    )


def json_text(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
