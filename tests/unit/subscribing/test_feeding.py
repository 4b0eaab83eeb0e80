"""What a feeder notes before the GID moves, and what it judges of tables that are not followed."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.client.stream.changelog import ChangeLog, Portion
from pgherd_sidecar.client.stream.changes import LoggedChange
from pgherd_sidecar.subscribing.applying import Applying
from pgherd_sidecar.subscribing.copying import Provider
from pgherd_sidecar.subscribing.feeding import Feeding
from pgherd_sidecar.subscribing.selecting.filtering import TablePart
from pgherd_sidecar.subscribing.sequences import FollowedSequences
from pgherd_sidecar.subscribing.sources import MemberSource, Source
from pgherd_sidecar.subscribing.state.errors import MemberError, StoppedError
from pgherd_sidecar.subscribing.state.herd import HerdTable, Subscription, TableSelection
from pgherd_sidecar.subscribing.state.holdings import ShownTable
from pgherd_sidecar.subscribing.state.orders import Relay
from pgherd_sidecar.subscribing.state.steps import AlteredError
from pgherd_sidecar.subscribing.state.subscriber import Subscriber
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.sessions import Session
from psycopg.pq import TransactionStatus


class There:
    """A subscriber that shows two tables of the order, one of them otherwise, and one of none."""

    gid = 7
    is_herd = False
    session: Any = None

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {"s.follows": None, "s.leaves": None}
        self.old: dict[str, Any] = {"s.altered": None}
        self.staged: dict[str, Any] = {}
        self.placing = self
        self._stand: set[str] = set()

    async def let_stand(self, names: Sequence[str]) -> None:
        self._stand = set(names)

    async def persist(self, work: Callable[[], Awaitable[None]]) -> None:
        await work()

    async def load(self) -> None:
        self.old |= dict.fromkeys(self._stand)
        self.shown = {name: one for name, one in self.shown.items() if name not in self._stand}


class Dying:
    """A source that is gone when a table is to be copied."""

    async def visible(self) -> int:
        return 9

    async def copy(self, _: There, names: Sequence[str]) -> None:
        raise MemberError(f"asked for {', '.join(names)}")


async def test_what_is_followed_no_more_is_copied_anew_if_it_is_wanted_again() -> None:
    there = There()
    order = Subscription("o", "o", "", 1, 1, 1, None, None, ("s.follows", "s.altered", "s.comes"))
    feeding = Feeding(
        cast("Source", Dying()), cast("Subscriber", there), order, cast("Relay", None)
    )
    with pytest.raises(MemberError, match=r"asked for s\.altered, s\.comes"):
        await feeding._copy(set(order.tables))
    assert there.shown.keys() == {"s.follows"}
    assert there._stand == {"s.leaves", "s.altered"}


ORDER = Subscription("o", "o", "", 1, 1, 1, None, None, ("s.part",))
PART = SourceTable(1, "s.part", "s", "part", 0, (), "full", ())


def emptied(gid: int) -> LoggedChange:
    return LoggedChange(gid, 2, 1, 9, "s.stage", "truncate", None, None)


def command(gid: int, number: int, **said: object) -> LoggedChange:
    text = json.dumps({"sql": "DROP TABLE ...", "rels": [], **said})
    return LoggedChange(gid, number, 1, 9, None, "command", None, None, text)


class Log:
    """It holds some commands."""

    def __init__(self, *commands: LoggedChange) -> None:
        self._commands = commands

    async def visible(self) -> int:
        return 99

    async def between(self, after: int, through: int) -> AsyncGenerator[list[LoggedChange], None]:
        assert through == 99
        yield [one for one in self._commands if one.gid > after]


class Member(MemberSource):
    """Its catalog has these tables."""

    def __init__(self, log: Log, *there: str) -> None:
        super().__init__(cast("Provider", None), cast("ChangeLog", log), ORDER)
        self._there = there

    async def describe(self, names: Iterable[str]) -> dict[str, HerdTable]:
        return {name: cast("HerdTable", None) for name in names if name in self._there}


@pytest.mark.parametrize(
    ("source", "stops"),
    [
        pytest.param(Member(Log(), "s.stage"), False, id="it is there"),
        pytest.param(Member(Log()), True, id="it is a partition"),
        pytest.param(Member(Log(command(8, 0, gone=["s.stage"]))), False, id="dropped"),
        pytest.param(Member(Log(command(7, 3, gone=["s.stage"]))), False, id="dropped at once"),
        pytest.param(Member(Log(command(7, 1, gone=["s.stage"]))), True, id="dropped before"),
        pytest.param(
            Member(Log(command(8, 0, gone=["s.part", "s.stage"]))), True, id="a dropped partition"
        ),
        pytest.param(
            Member(
                Log(
                    command(8, 0, sql="ALTER TABLE s.part DETACH ...", rels=["s.part", "s.stage"]),
                    command(9, 0, gone=["s.stage"]),
                )
            ),
            True,
            id="detached and dropped",
        ),
    ],
)
async def test_a_partition_that_is_emptied_stops_it_and_a_table_that_was_dropped_since_does_not(
    source: MemberSource, stops: bool
) -> None:
    applying = Applying(
        source,
        cast("Subscriber", There()),
        FollowedSequences(source, cast("Any", None), ORDER),
        None,
    )
    batch = applying.batch({"s.part": ShownTable(PART, 5, 1, parts=True)}, keeps=False)
    if stops:
        with pytest.raises(AlteredError, match=r"s\.stage, a partition"):
            await applying.take([emptied(7)], batch)
    else:
        await applying.take([emptied(7)], batch)


async def test_what_came_before_the_copy_of_a_table_with_partitions_stops_nothing() -> None:
    source = Member(Log())
    applying = Applying(
        source,
        cast("Subscriber", There()),
        FollowedSequences(source, cast("Any", None), ORDER),
        None,
    )
    batch = applying.batch({"s.part": ShownTable(PART, 7, 1, parts=True)}, keeps=False)
    await applying.take([emptied(7), command(7, 3, sql="anything", everything=True)], batch)


FILTERED = TableSelection("s.part", None, "(region = 1)", ("region",))


class AlteredLog(Log):
    """It is read as a whole: a command, and a row that shows what the command has done."""

    async def portions(self, after: int) -> AsyncGenerator[Portion, None]:
        yield Portion(9, 9, [one for one in self._commands if one.gid > after])

    async def between(self, after: int, through: int) -> AsyncGenerator[list[LoggedChange], None]:
        yield [one for one in self._commands if after < one.gid <= through]


class Quiet:
    """A session in which nothing is wrong."""

    info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)

    async def execute(self, *_command: object) -> None:
        pass


class Shows(There):
    """A subscriber that shows a part of a table."""

    gid = 5
    session = Quiet()

    def __init__(self) -> None:
        super().__init__()
        self.shown = {"s.part": ShownTable(PART, 5, 1, of=FILTERED, read_types=("integer",))}

    async def advance(self, to: int, _as_of: object) -> None:
        assert to == 6


async def test_a_command_stops_it_though_a_row_filter_has_met_a_later_row_first() -> None:
    order = msgspec.structs.replace(ORDER, selections=(FILTERED,))
    altering = command(7, 0, sql="ALTER TABLE s.part DROP COLUMN region", rels=["s.part"])
    row = LoggedChange(9, 0, 1, 9, "s.part", "insert", None, {"id": "1"})
    log = cast("ChangeLog", AlteredLog(altering, row))
    source = MemberSource(cast("Provider", None), log, order, cast("Session", object()))
    source._parts = {"s.part": TablePart(FILTERED, ("integer",))}
    there = Shows()
    feeding = Feeding(source, cast("Subscriber", there), order, cast("Relay", None))
    feeding._position = 5
    with pytest.raises(StoppedError, match=r"GID 7 alters a table of the set \(ALTER TABLE"):
        await feeding._follow()
    assert there.gid == 6
