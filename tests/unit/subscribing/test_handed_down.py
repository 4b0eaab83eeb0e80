"""What a herd hands down a cascade of ends that followers hear, and of those that they do not."""

from typing import Any, cast

import pytest
from pgherd_sidecar.subscribing.state import herd
from pgherd_sidecar.tables.sessions import Session


async def test_an_end_without_a_word_is_remembered_behind_a_later_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A provider that was away has the first order still, and would tell its follower."""
    rows: dict[str, list[dict[str, Any]]] = {
        "keeps_ends": [{"found": True}],
        "ends": [
            {"set": "s", "name": "x", "revision": 20, "silent": 10},
            {"set": "s", "name": "y", "revision": 20, "silent": 0},
        ],
    }

    async def ask(_: Session, name: str) -> list[dict[str, Any]]:
        return rows[name]

    monkeypatch.setattr(herd, "ask", ask)
    (gone,) = await herd.handed_down(cast(Session, None), [])
    assert (gone.name, gone.provider, gone.ended, gone.silent) == ("x", None, 20, 10)
