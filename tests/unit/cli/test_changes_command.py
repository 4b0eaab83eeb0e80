"""``pgherd changes`` says so when it waits for what is not there yet."""

import json
from typing import cast

import pytest
from pgherd_sidecar.cli import changes
from pgherd_sidecar.client.admin import AdminClient


class Member:
    """Everything up to GID 7 is there, and nothing of it changes a row."""

    async def read_changes(self, after: int, max_bytes: int) -> bytes:
        head = {"through": after, "visible": 7, "blocks": [], "committed": ""}
        return json.dumps(head).encode() + b"\n"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (7, ""),
        (9, "GID 9 is not there yet, the newest is 7: waiting for those after it\n"),
    ],
)
async def test_a_beginning_after_the_newest_gid_is_told(
    after: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await changes._print([cast(AdminClient, Member())], after, after, ())
    assert capsys.readouterr().err == said
