"""What the copy of a table leaves behind when the herd does not take its rows."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import cast

import pytest
from pgherd_sidecar.importing import copying
from pgherd_sidecar.importing.copying import Copying
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.target import Copied, Target
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session


async def test_nobody_reads_a_table_on_that_the_herd_does_not_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = False

    async def pieces(*_args: object) -> AsyncGenerator[tuple[bytes, int], None]:
        nonlocal closed
        try:
            while True:
                yield b"1\n", 1
        finally:
            closed = True

    async def no_session() -> None:
        raise ImportFailed("no node takes writes")

    monkeypatch.setattr(copying, "read_pieces", pieces)
    table = SourceTable(1, "s.t", "s", "t", 0, (), "key", ())
    one = Copied(table, 0, 0, 0, done=False, since=None, changed=0)
    target = cast("Target", SimpleNamespace(run=None, another_session=no_session))
    work = Copying(cast("SourceAddress", None), target, [one])
    waiting: asyncio.Queue[Copied] = asyncio.Queue()
    waiting.put_nowait(one)
    with pytest.raises(ImportFailed):
        await work._work(waiting, cast("Session", None), 1)
    assert closed
