"""The subscriber's server works while the next changes are decoded."""

import asyncio
from typing import Any, cast

import pytest
from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.applying import Applying, ChangeBatch
from pgherd_sidecar.subscribing.background import Background
from pgherd_sidecar.subscribing.sequences import FollowedSequences
from pgherd_sidecar.subscribing.sources import Source
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables import pending
from pgherd_sidecar.tables.folding import RowChange, Step
from pgherd_sidecar.tables.model import SourceColumn, SourceTable
from pgherd_sidecar.tables.rowsql import Writer

_COLUMN = SourceColumn("id", "integer", 23, -1, generated=False, as_text=False)
_TABLE = SourceTable(1, "s.t", "s", "t", 0, (_COLUMN,), "key", (0,))


class _Subscriber:
    """A subscriber whose server answers when it is let, and that is its own session and writer."""

    def __init__(self) -> None:
        self.gid = 1
        self.session = self
        self.done: list[object] = []
        self.may_answer = asyncio.Event()

    async def execute(self, statement: str) -> None:
        """See psycopg."""
        await self.may_answer.wait()
        self.done.append(statement)

    async def write(self, _: object, found: list[Step]) -> None:
        """See ``Writer``."""
        news = [one.new for one in found if isinstance(one, RowChange) and one.new is not None]
        await self.execute(",".join(str(value) for (value,) in news))

    async def advance(self, to: int, _: object) -> None:
        """See ``Subscriber``."""
        await self.execute(f"to {to}")


class _NoSequences:
    """Those of a set without."""

    known = ()

    async def set(self, _: object) -> None:
        """See ``FollowedSequences``."""


def rows(*numbers: int) -> list[LoggedChange]:
    """Changes that insert a row each, and have its number as their GID."""
    return [
        LoggedChange(number, 0, 1, 9, "s.t", "insert", {"id": f"{number}"}, {"id": f"{number}"})
        for number in numbers
    ]


@pytest.fixture
def subscriber() -> _Subscriber:
    return _Subscriber()


@pytest.fixture
def applying(subscriber: _Subscriber, monkeypatch: pytest.MonkeyPatch) -> Applying:
    """Writes two rows at a time."""
    monkeypatch.setattr(pending, "_STEPS", 2)
    sequences = cast("FollowedSequences", _NoSequences())
    return Applying(cast("Source", None), cast("Subscriber", subscriber), sequences, None)


def begun(applying: Applying, subscriber: _Subscriber, background: Background) -> ChangeBatch:
    """A batch that is written there."""
    batch = applying.batch({"s.t": ShownTable(_TABLE, 1, 1)}, keeps=False, background=background)
    batch.writer = cast("Writer", subscriber)
    return batch


async def test_rows_are_taken_while_others_are_written_and_come_in_their_order(
    subscriber: _Subscriber, applying: Applying
) -> None:
    background = Background()
    batch = begun(applying, subscriber, background)
    await applying.take(rows(2, 3, 4), batch)  # two are being written, one waits
    assert not subscriber.done
    next_ones = asyncio.create_task(applying.take(rows(5, 6), batch))
    await asyncio.sleep(0)
    assert not next_ones.done()  # only one group is under way
    subscriber.may_answer.set()
    await next_ones
    await applying.commit(batch, 6, None)
    await background.settle()
    assert subscriber.done == ["BEGIN", "2,3", "4,5", "6", "to 6", "COMMIT"]
    assert (subscriber.gid, batch.rows) == (6, 5)


async def test_what_is_being_committed_is_not_shown_yet(
    subscriber: _Subscriber, applying: Applying
) -> None:
    background = Background()
    batch = begun(applying, subscriber, background)
    await applying.take(rows(2), batch)
    await applying.commit(batch, 2, None)
    assert subscriber.gid == 1
    subscriber.may_answer.set()
    await background.settle()
    assert subscriber.gid == 2


async def test_nothing_is_begun_after_a_failure() -> None:
    background, did = Background(), list[int]()

    async def fail() -> None:
        raise ValueError("no")

    async def do() -> None:
        did.append(1)

    await background.begin(fail())
    with pytest.raises(ValueError, match="no"):
        await background.begin(do())
    await background.settle()
    assert not did
    await background.begin(do())
    await background.settle()
    assert did


@pytest.mark.parametrize("how", ["end", "cancelled"])
async def test_nothing_goes_on_after_the_end(how: str) -> None:
    background, heard = Background(), list[str]()

    async def work() -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            heard.append("broken off")

    await background.begin(work())
    if how == "end":
        await background.end()
    else:
        waits = asyncio.create_task(background.settle())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
    assert heard == ["broken off"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
