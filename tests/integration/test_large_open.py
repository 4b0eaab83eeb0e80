"""While a transaction in pieces is open members come, go and die; then it goes on, or never was.

Its server process is stopped between two pieces, for as long as a test wants. The log is trimmed
all the while, up to its first piece: whoever joins or starts again has to find the pieces there.
"""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest
from patience import in_time, wait_until_async
from pgherd_sidecar.core.consensus.model.blocks import ENTRIES
from pgherd_sidecar.core.replication.entries import Piece, iter_entries

from .ledger import Ledger, new_ledger
from .localherd import LocalHerd, free_port_base, home, limited, query, standing
from .test_damaged_logs import HEAD_BYTES, blocks, flip, segments
from .test_membership import kill
from .test_restart import run

NODES = ["n1", "n2", "n3"]
ROWS = 2000
NEW = 4000
_MOST = 4


@pytest.fixture(scope="module")
def small(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd with small pieces, which trims its logs all the time."""
    environment = limited(
        work_directory, "small_and_forgetful", piece_bytes=16384, row_bytes=1 << 20,
        log_cache_bytes=1 << 16, segment_bytes=1 << 18, log_retention_bytes=1 << 18,
        checkpoint_ms=500,
    )  # fmt: skip
    with standing(LocalHerd(work_directory / "small", free_port_base(_MOST), environment)) as herd:
        yield herd


@pytest.fixture
def ledger(small: LocalHerd) -> Iterator[Ledger]:
    """A load beside the large transaction, and the rows that this changes."""
    ledger = new_ledger(small)
    query(small.app_dsn("n1"), f"CREATE TABLE {ledger.schema}.bulk (id int PRIMARY KEY, t text)")
    rows = f"SELECT g, 'x' FROM generate_series(1, {ROWS}) g"
    query(small.app_dsn("n1"), f"INSERT INTO {ledger.schema}.bulk {rows}")
    small.must("verify")
    yield ledger
    if (home(small) / "n4").exists():
        small.must("remove", "n4")
    ledger.drop()


async def until(what: str, true: Callable[[], bool]) -> None:
    """Wait until it is so."""
    await wait_until_async(lambda: asyncio.to_thread(true), brief=True, told=lambda: what)


# ---- a transaction that is open ----------------------------------------------------------------


@dataclass
class Open:
    """A transaction of which pieces are ordered, and no verdict.

    Attributes:
        origin: the node of its session, whose server process is stopped.
        since: position of the log when it had begun.
    """

    ledger: Ledger
    origin: str
    since: int
    pid: int
    ending: "asyncio.Task[psycopg.Error | None]"

    @property
    def herd(self) -> LocalHerd:
        return self.ledger.herd

    def go_on(self) -> None:
        """Let it send what is left, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def counted(self, node: str) -> tuple[int, int]:
        """How many rows of a node are as before, and as it makes them."""
        ((old, new),) = query(
            self.herd.dsn(node),
            f"SELECT count(*) FILTER (WHERE t = 'x'), count(*) FILTER (WHERE length(t) = {NEW + 1})"
            f" FROM {self.ledger.schema}.bulk",
        )
        return old, new

    def bases(self) -> list[int]:
        """After which position each member's log begins."""
        return [query(one.dsn, "SELECT pgherd.log_base()")[0][0] for one in self.herd.nodes()]


@contextlib.asynccontextmanager
async def opened(ledger: Ledger, origin: str) -> AsyncIterator[Open]:
    """Begin a transaction in pieces on a node, and stop it when another node writes them."""
    herd = ledger.herd
    other = next(name for name in NODES if name != origin)
    await ledger.commits(20, on=NODES)
    async with await psycopg.AsyncConnection.connect(
        herd.app_dsn(origin), autocommit=True
    ) as session:
        ending = asyncio.create_task(_change(session, ledger.schema))
        await until("its pieces come", partial(_comes, herd.dsn(other)))
        pid = session.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        one = Open(ledger, origin, herd.member(other)["log_position"], pid, ending)
        try:
            assert not ending.done()
            yield one
        finally:
            one.go_on()
            async with in_time():
                await asyncio.wait([ending])


async def _change(session: psycopg.AsyncConnection, schema: str) -> psycopg.Error | None:
    try:
        await session.execute(f"UPDATE {schema}.bulk SET t = t || repeat('y', {NEW})".encode())
    except psycopg.Error as error:
        return error
    return None


def _comes(dsn: str) -> bool:
    sessions = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgherd large'"
    return bool(query(dsn, sessions))


# ---- what happens meanwhile --------------------------------------------------------------------


async def time_passes(one: Open, member: str) -> None:
    """Checkpoints are made, and logs trimmed up to the first piece."""
    await one.ledger.commits(50, on=NODES)


async def a_copy_joins(one: Open, member: str, method: str) -> None:
    await run(one.herd, "add", "n4", "--method", method)


async def a_copy_replaces_it(one: Open, member: str) -> None:
    await run(one.herd, "rebuild", member)


async def it_starts_again(one: Open, member: str, process: str) -> None:
    await kill(one.herd, member, process=process)
    await one.ledger.commits(20, on=[name for name in NODES if name != member])
    await run(one.herd, "start", member)


async def its_log_is_damaged(one: Open, member: str) -> None:
    """The first piece, which holds keys, and one in the middle."""
    await kill(one.herd, member, process="sidecar")
    pieces = [
        (segment, at)
        for segment in segments(one.herd, member)
        for block, at in blocks(segment)
        if block.kind == ENTRIES
        and block.last <= one.since
        and any(isinstance(entry, Piece) for entry in iter_entries(block.data))
    ]
    for segment, at in (pieces[0], pieces[len(pieces) // 2]):
        flip(segment, at + HEAD_BYTES)
    await run(one.herd, "start", member)


MEANWHILE: dict[str, Callable[[Open, str], Awaitable[None]]] = {
    "time passes": time_passes,
    "a base backup joins": partial(a_copy_joins, method="basebackup"),
    "a dump joins": partial(a_copy_joins, method="dump"),
    "one is rebuilt": a_copy_replaces_it,
    "a log is damaged": its_log_is_damaged,
    "a sidecar dies": partial(it_starts_again, process="sidecar"),
    "a server dies": partial(it_starts_again, process="postgres"),
    "a node dies": partial(it_starts_again, process="node"),
    "the proposer dies": partial(it_starts_again, process="sidecar"),
}


# ---- how it ends -------------------------------------------------------------------------------


async def it_goes_on(one: Open) -> tuple[int, int]:
    """Its session sends the rest; nothing was in the way."""
    one.go_on()
    assert await one.ending is None
    return 0, ROWS


async def its_origin_dies(one: Open, process: str) -> tuple[int, int]:
    """The others give it up: whoever wants its rows can have them before the origin is back."""
    await kill(one.herd, one.origin, process=process)
    one.go_on()
    assert await one.ending is not None
    other = next(name for name in NODES if name != one.origin)
    rows = f"{one.ledger.schema}.bulk"
    await until("its rows are free", partial(_commits, one.herd, other, f"UPDATE {rows} SET t = t"))
    await run(one.herd, "start", one.origin)
    return ROWS, 0


def _commits(herd: LocalHerd, node: str, statement: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        query(herd.app_dsn(node), statement)
        return True
    return False


ENDINGS: dict[str, Callable[[Open], Awaitable[tuple[int, int]]]] = {
    "it goes on": it_goes_on,
    "its sidecar dies": partial(its_origin_dies, process="sidecar"),
    "its server dies": partial(its_origin_dies, process="postgres"),
    "its node dies": partial(its_origin_dies, process="node"),
}
_CASES = [pytest.param(*case, id=", ".join(case)) for case in itertools.product(MEANWHILE, ENDINGS)]


@pytest.mark.long
@pytest.mark.parametrize(("event", "ending"), _CASES)
async def test_all_have_all_of_it_or_nothing(
    small: LocalHerd, ledger: Ledger, event: str, ending: str
) -> None:
    proposer = small.summary()["proposer"]
    member, origin = (name for name in NODES if name != proposer)
    if event == "time passes":
        origin = proposer
    if event == "the proposer dies":
        member = proposer
    async with ledger.load(1):
        async with opened(ledger, origin) as one:
            await MEANWHILE[event](one, member)
            assert not one.ending.done()
            assert max(one.bases()) <= one.since
            rows = await ENDINGS[ending](one)
        await until("its pieces are forgotten", lambda: min(one.bases()) > one.since)
    ledger.check()
    assert {node.name: one.counted(node.name) for node in small.nodes()} == {
        node.name: rows for node in small.nodes()
    }
    assert not any(_comes(node.dsn) for node in small.nodes())
