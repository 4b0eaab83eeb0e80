"""The admin API, called by the command line's own client wherever that has a call for it."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from pgherd_sidecar.agent.admin.api import AdminServer
from pgherd_sidecar.agent.admin.metrics import BUCKETS_S, KNOWN, to_metrics
from pgherd_sidecar.agent.admin.port import (
    ExportedSnapshot,
    Refused,
    StatusValue,
    Unavailable,
    UnknownMarker,
)
from pgherd_sidecar.agent.hook.figures import BOUNDS_S, CommitFigures
from pgherd_sidecar.client import routes
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.pg.comparison.checksum import TableChecksum, UnknownTable
from pgherd_sidecar.pg.comparison.indexes import IndexReport
from pgherd_sidecar.pg.roles import Wanted

MARKER = "00ff"


class ViewStub:
    def __init__(self, told: list[str]) -> None:
        self.told = told

    def leave(self, name: str, disk: str, *, dead: bool = False) -> None:
        if name == "n9":
            raise Unavailable("no majority")
        self.told.append(f"leave {name} {disk}{' dead' * dead}")

    def split(self, names: list[str], *, act: bool) -> Mapping[str, StatusValue]:
        self.told.append(f"split {names} {act}")
        return {"members": names}

    def block(self, names: list[str], unsent: list[str]) -> None:
        self.told.append(f"block {names} {unsent}")


class ChangesStub:
    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def read(self, after: int, max_bytes: int) -> bytes:
        if after < 7:
            raise Refused("the log begins at position 8 here")
        return b"{}\n\x00%d %d" % (after, max_bytes)

    async def hold(self, stream: str, after: int, lease_s: float) -> None:
        self.told.append(f"hold {stream} {after} {lease_s}")

    async def release(self, hold: str) -> bool:
        self.told.append(f"release {hold}")
        return hold == "stream:lake"

    async def tables(self) -> dict[str, StatusValue]:
        table: StatusValue = {
            "table": "public.t",
            "gid": 3,
            "columns": ["a"],
            "types": ["int"],
            "key": ["a"],
        }
        return {"visible": 9, "tables": [table]}


class RolesStub:
    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def ensure(self, wanted: Sequence[Wanted]) -> Sequence[str]:
        if wanted[0].name == "owner":
            raise Refused("it owns table t")
        self.told.append(str(wanted))
        return ["reader: created"]


class MaintenanceStub:
    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def begin(self, request: routes.MaintainRequest) -> dict[str, StatusValue]:
        if request.sql == ["DELETE FROM t"]:
            raise Refused("it is no maintenance of one server")
        self.told.append(f"maintain {request.sql} {request.vacuum_full} {request.drain}")
        return {"run": "r1", "members": ["n1", "n2"]}

    async def known(self, schedule: str) -> dict[str, StatusValue]:
        part: StatusValue = {"member": "n1", "state": "done", "seconds": 2.5, "error": ""}
        run: StatusValue = {
            "run": "r1",
            "schedule": schedule,
            "created": "2030-01-01T00:00:00+00:00",
            "statements": ["ANALYZE"],
            "parts": [part],
        }
        return {"runs": [run], "schedules": []}

    async def cancel(self, run: str) -> bool:
        return run == "r1"

    async def drop(self, schedule: str) -> bool:
        return schedule == "nightly"


class SubscriptionsStub:
    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def order_set(self, request: routes.SetRequest) -> dict[str, StatusValue]:
        if request.tables == ["absent.*"]:
            raise Refused("no table is meant by absent.*")
        self.told.append(f"set {request.name} {request.tables} {request.chosen}")
        return {"tables": ["sales.item"], "sequences": [], "chosen": [], "subscriptions": []}

    async def drop_set(self, request: routes.DropSetRequest) -> dict[str, StatusValue]:
        return {"found": request.name == "orders"}

    async def order(self, request: routes.SubscriptionRequest) -> dict[str, StatusValue]:
        self.told.append(f"subscription {request.name} {request.set} {request.keep_bytes}")
        return {"ordered": True, "state": "copying"}

    async def end(self, request: routes.SubscriptionEnd) -> dict[str, StatusValue]:
        self.told.append(f"end {request.name} {request.herd_only}")
        return {"ended": True}


class MarkersStub:
    """Holds one marker."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    async def ready(self, marker_id: str, timeout_s: float) -> int:
        self._check(marker_id)
        if timeout_s < 1:
            raise TimeoutError
        return 8

    async def lease(self, marker_id: str, lease_s: float) -> ExportedSnapshot:
        self._check(marker_id)
        self.told.append(f"lease {lease_s:g}")
        return ExportedSnapshot(8, "00000003-1", "10:12:11")

    async def tables(self, marker_id: str) -> Mapping[str, TableChecksum]:
        self._check(marker_id)
        return {'public."T"': TableChecksum(rows=2, checksum="ab", columns="cd")}

    async def buckets(self, marker_id: str, table: str) -> Mapping[int, str]:
        self._check(marker_id)
        if table != "t":
            raise UnknownTable(table)
        return {3: "ab"}

    async def keys(self, marker_id: str, table: str, bucket: int) -> Mapping[str, str]:
        self._check(marker_id)
        return {f"{table} {bucket}": "ab"}

    async def drop(self, marker_id: str) -> None:
        self.told.append(f"drop {marker_id}")

    def _check(self, marker_id: str) -> None:
        if marker_id != MARKER:
            raise UnknownMarker(f"no marker {marker_id}")


class Backend:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.orders = True
        self.views = ViewStub(self.told)
        self.markers = MarkersStub(self.told)
        self.changes = ChangesStub(self.told)
        self.roles = RolesStub(self.told)
        self.maintenance = MaintenanceStub(self.told)
        self.subscriptions = SubscriptionsStub(self.told)

    async def status(self) -> Mapping[str, StatusValue]:
        return {
            "name": 'n"1',
            "cluster_id": "c",
            "state": "primary",
            "reason": None,
            "gid": 7,
            "log_position": 9,
            "commits": 3,
            "fenced": False,
            "flush_s": 0.5,
        }

    async def shutdown(self) -> None:
        self.told.append("shutdown")

    async def rebuild(self, partner: str | None, rate_bytes_s: int | None) -> None:
        if partner == "n9":
            raise Unavailable("n9 does not take writes")
        self.told.append(f"rebuild {partner} {rate_bytes_s}")

    async def explain(self, gid: int, *, rows: bool) -> Mapping[str, StatusValue]:
        if gid > 9:
            raise Refused(f"GID {gid} has not been ordered yet")
        return {"gid": gid, "rows": rows}

    async def skip(self, gid: int, *, act: bool) -> Mapping[str, StatusValue]:
        if gid == 9:
            raise Refused("no database has stopped at GID 9")
        self.told.append(f"skip {gid}, act {act}")
        return {"gid": gid, "stopped": ["n2"], "rebuilt": ["n1"]}

    async def order_marker(self, names: tuple[str, ...]) -> tuple[str, int]:
        if not self.orders:
            raise Unavailable("no proposer")
        self.told.append(f"marker for {names}")
        return MARKER, 8

    async def check_indexes(self) -> IndexReport:
        return IndexReport(True, 2, {"public.i": "heap tuple lacks a match"}, {"public.k": "busy"})


@asynccontextmanager
async def serving(path: Path, backend: Backend) -> AsyncIterator[AdminClient]:
    server = AdminServer(path, backend)
    await server.start()
    try:
        yield AdminClient(path)
    finally:
        await server.stop()


async def call(path: Path, method: str, route: str, body: bytes = b"") -> tuple[int, str]:
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, f"http://sidecar{route}", data=body) as answer,
    ):
        return answer.status, await answer.text()


async def test_requests_about_the_membership_reach_the_views(tmp_path: Path) -> None:
    backend = Backend()
    async with serving(tmp_path / "s", backend) as client:
        await client.leave("n2", "d2")
        await client.evict("n2", "")
        assert (await client.skip(7, act=False)).stopped == ("n2",)
        assert (await client.skip(7, act=True)).rebuilt == ("n1",)
        with pytest.raises(AdminError, match="no database has stopped at GID 9"):
            await client.skip(9, act=True)
        with pytest.raises(AdminError, match="no majority") as refused:
            await client.leave("n9", "")
        assert refused.value.may_pass
        await client.block_links(["n2", "n1"])
        refusal = await call(tmp_path / "s", "POST", "/view/part", b'{"names": []}')
        assert refusal[0] == 400
        code, text = await call(tmp_path / "s", "POST", "/view/part", b'{"names": ["n1"]}')
        assert (code, json.loads(text)) == (200, {"members": ["n1"]})
    assert backend.told == [
        "leave n2 d2",
        "leave n2  dead",
        "skip 7, act False",
        "skip 7, act True",
        "block ['n1', 'n2'] []",
        "split ['n1'] False",
    ]


async def test_roles_are_asked_for_and_passwords_not_told(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "s"
    reader = (
        b'{"name": "reader", "login": true, "connection_limit": 3, "member_of": ["a"],'
        b' "password": "%s"}'
    )
    async with serving(path, backend):
        asked = b'{"roles": [%s]}' % (reader % b"secret")
        code, text = await call(path, "POST", "/roles", asked)
        assert (code, json.loads(text)) == (200, {"changed": ["reader: created"]})
        code, text = await call(path, "POST", "/roles", b'{"roles": [{"name": "owner"}]}')
        assert (code, json.loads(text)) == (409, {"error": "it owns table t"})
        for wrong in (b'{"name": ""}', b"{}", b'{"name": "a\\u0000"}', reader % b"secret\\u0000",
                      reader % b"", b'{"name": "a", "connection_limit": -2}'):  # fmt: skip
            code, text = await call(path, "POST", "/roles", b'{"roles": [%s]}' % wrong)
            assert code == 400, wrong
            assert "secret" not in text
    told = "[Wanted(name='reader', absent=False, login=True, connection_limit=3, member_of=('a',))]"
    assert backend.told == [told]


async def test_maintenance_is_asked_for_and_what_is_wrong_is_refused(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "s"
    async with serving(path, backend) as client:
        begun = await client.maintain(routes.MaintainRequest(vacuum_full=["t"], drain=True))
        assert (begun.run, begun.members) == ("r1", ("n1", "n2"))
        with pytest.raises(AdminError, match="no maintenance of one server") as refused:
            await client.maintain(routes.MaintainRequest(sql=["DELETE FROM t"]))
        assert refused.value.code == 409
        (known,) = (await client.maintenance("nightly")).runs
        assert known.succeeded
        assert (known.schedule, known.parts[0].seconds) == ("nightly", 2.5)
        assert await client.cancel_maintenance("r1")
        assert not await client.cancel_maintenance("r2")
        assert await client.drop_schedule("nightly")
        assert not await client.drop_schedule("daily")
        for wrong in (b'{"grace_s": -1}', b'{"sql": [""]}', b'{"deadline_s": 0}', b"[]"):
            assert (await call(path, "POST", "/maintenance", wrong))[0] == 400
    assert backend.told == ["maintain [] ['t'] True"]


async def test_sets_and_subscriptions_are_ordered_and_passwords_not_told(tmp_path: Path) -> None:
    backend, path = Backend(), tmp_path / "s"
    wanted = b'{"name": "w", "set": "orders", "dsn": "host=x password=secret"%s}'
    async with serving(path, backend):
        code, text = await call(path, "POST", "/sets/order", b'{"name": "o", "tables": ["a.*"]}')
        assert (code, json.loads(text)["tables"]) == (200, ["sales.item"])
        asked = b'{"name": "o", "tables": ["absent.*"]}'
        code, text = await call(path, "POST", "/sets/order", asked)
        assert (code, json.loads(text)) == (409, {"error": "no table is meant by absent.*"})
        assert await call(path, "POST", "/sets/drop", b'{"name": "x"}') == (200, '{"found": false}')
        code, text = await call(path, "POST", "/subscriptions/order", wanted % b"")
        assert (code, json.loads(text)["state"]) == (200, "copying")
        code, text = await call(path, "POST", "/subscriptions/end", b'{"name": "w"}')
        assert (code, json.loads(text)) == (200, {"ended": True})
        for wrong in (
            b', "keep_bytes": 1',
            b', "keep_s": 0',
            b', "provider": "a b"',
            b', "set": ""',
        ):
            code, text = await call(path, "POST", "/subscriptions/order", wanted % wrong)
            assert code == 400, wrong
            assert "secret" not in text
    assert backend.told == [
        "set o ['a.*'] []", "subscription w orders 8589934592", "end w False",
    ]  # fmt: skip


async def test_readers_of_the_log_get_it_and_are_told_when_it_is_gone(tmp_path: Path) -> None:
    backend = Backend()
    async with serving(tmp_path / "s", backend) as client:
        assert await client.read_changes(7, 100) == b"{}\n\x007 100"
        with pytest.raises(AdminError, match="the log begins at position 8") as refused:
            await client.read_changes(6, 100)
        assert refused.value.code == 409
        (table,) = (await client.changed_tables()).tables
        assert (table.table, table.gid, table.key) == ("public.t", 3, ("a",))
        await client.hold_changes("lake", 7, 60)
        assert await client.release_hold("stream:lake")
        assert not await client.release_hold("stream:nobody's")
    assert backend.told == ["hold lake 7 60.0", "release stream:lake", "release stream:nobody's"]


async def test_every_call_of_the_command_line_is_answered(tmp_path: Path) -> None:
    backend = Backend()
    async with serving(tmp_path / "s", backend) as client:
        status = await client.status()
        assert (status.state, status.gid, status.log_position) == ("primary", 7, 9)
        marker = await client.order_marker(["n2", "n1"])
        assert (marker.id, marker.gid) == (MARKER, 8)
        assert await client.wait_marker(MARKER, 5) == 8
        lease = await client.lease_marker(MARKER, 30)
        assert (lease.gid, lease.snapshot, lease.visible) == (8, "00000003-1", "10:12:11")
        tables = await client.tables(MARKER, 5)
        assert tables['public."T"'].rows == 2
        assert await client.buckets(MARKER, "t", 5) == {3: "ab"}
        assert await client.keys(MARKER, "t", 3, 5) == {"t 3": "ab"}
        found = await client.check_indexes(5)
        assert (found.available, found.checked) == (True, 2)
        assert found.faults == {"public.i": "heap tuple lacks a match"}
        assert found.skipped == {"public.k": "busy"}
        await client.drop_marker(MARKER)
        await client.rebuild("n2", 1 << 20)
        await client.rebuild(None, None)
        assert await client.explain(8, rows=True) == {"gid": 8, "rows": True}
        await client.shutdown()
    assert backend.told == [
        "marker for ('n1', 'n2')",
        "lease 30",
        f"drop {MARKER}",
        "rebuild n2 1048576",
        "rebuild None None",
        "shutdown",
    ]


@pytest.mark.parametrize(
    "method, route, body, expected",
    [
        ("GET", "/nothing", b"", 404),
        ("DELETE", "/status", b"", 405),
        ("GET", "/marker/dead/ready?timeout_s=5", b"", 404),
        ("POST", "/marker/dead/tables", b"", 404),
        ("POST", "/marker/dead/lease", b'{"lease_s": 5}', 404),
        ("POST", "/marker/00ff/lease", b'{"lease_s": 0.5}', 400),
        ("POST", "/marker/00ff/lease", b'{"lease_s": 3601}', 400),
        ("POST", "/marker/00ff/buckets", b'{"table": "u"}', 404),
        ("GET", "/marker/00ff/ready?timeout_s=0.5", b"", 504),
        ("GET", "/marker/00ff/ready?timeout_s=-1", b"", 400),
        ("GET", "/marker/00ff/ready?timeout_s=soon", b"", 400),
        ("POST", "/marker/00ff/buckets", b"", 400),
        ("POST", "/marker/00ff/buckets", b'{"table": 1}', 400),
        ("POST", "/marker/00ff/keys", b'{"table": "t"}', 400),
        ("POST", "/marker", b"{}", 503),
        ("POST", "/marker", b'{"members": [""]}', 400),
        ("POST", "/marker", b'{"members": ["n1\\u0000n2"]}', 400),
        ("POST", "/marker", b'{"members": ["%s"]}' % (b"n" * 64), 400),
        ("POST", "/rebuild", b'{"partner": "n9"}', 503),
        ("POST", "/rebuild", b'{"rate_bytes_s": 1}', 400),
        ("POST", "/explain", b'{"gid": 10}', 409),
        ("POST", "/explain", b'{"gid": 0}', 400),
        ("POST", "/explain", b"{}", 400),
    ],
)
async def test_errors_are_json_under_a_telling_status(
    tmp_path: Path, method: str, route: str, body: bytes, expected: int
) -> None:
    backend = Backend()
    backend.orders = False
    async with serving(tmp_path / "s", backend):
        status, text = await call(tmp_path / "s", method, route, body)
    assert status == expected
    error = json.loads(text)
    assert list(error) == ["error"] and error["error"]


async def test_the_client_shows_the_text_of_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", Backend()) as client:
        with pytest.raises(AdminError, match="no marker dead"):
            await client.tables("dead", 5)


async def test_only_the_owner_can_open_the_socket_and_it_is_removed_at_the_end(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with serving(path, Backend()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_socket_left_behind_is_replaced_but_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = await asyncio.start_unix_server(lambda *_: None, str(path))
    server.close()
    await server.wait_closed()
    async with serving(path, Backend()) as client:
        await client.status()
    path.write_text("precious")
    with pytest.raises(OSError):
        await AdminServer(path, Backend()).start()
    assert path.read_text() == "precious"


async def test_its_directory_is_made_where_nobody_else_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "server" / "s"
    async with serving(path, Backend()) as client:
        await client.status()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_metrics_are_the_numbers_of_the_status(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", Backend()):
        _, text = await call(tmp_path / "s", "GET", "/metrics")
    assert text == to_metrics(await Backend().status())
    told = [line for line in text.splitlines() if line[0] != "#"]
    assert told == [
        'pgherd_state{member="n\\"1",state="primary"} 1',
        'pgherd_gid{member="n\\"1"} 7',
        'pgherd_log_position{member="n\\"1"} 9',
        'pgherd_commits{member="n\\"1"} 3',
        'pgherd_fenced{member="n\\"1"} 0',
        'pgherd_flush_s{member="n\\"1"} 0.5',
    ]


def test_sums_by_something_are_told_with_a_label() -> None:
    text = to_metrics({"name": "n1", "state": "primary", "rebuilds_total": {"done": 2, "x": 1}})
    assert text.splitlines()[3:] == [
        "# HELP pgherd_rebuilds_total how often its database was made anew",
        "# TYPE pgherd_rebuilds_total counter",
        'pgherd_rebuilds_total{member="n1",outcome="done"} 2',
        'pgherd_rebuilds_total{member="n1",outcome="x"} 1',
    ]


def test_every_metric_with_a_line_of_help_is_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    assert [name for name in KNOWN if f"| `pgherd_{name}" not in text] == []


def test_waits_in_commit_are_a_histogram() -> None:
    assert {*BUCKETS_S} <= {*BOUNDS_S}
    figures = CommitFigures()
    for waited_s in (0.00005, 0.0015, 0.0015, 100.0):
        figures.committed(waited_s)
    lines = to_metrics({"name": "n1", "state": "primary", **figures.status()}).splitlines()
    prefix = 'pgherd_commit_wait_seconds_bucket{member="n1",le='
    buckets = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    assert buckets[0] == '"0.0001"} 1'
    assert buckets[-1] == '"+Inf"} 4'
    counts = [int(line.split()[1]) for line in buckets]
    assert counts == sorted(counts)
    assert counts[-2] == 3
    assert 'pgherd_commit_wait_seconds_sum{member="n1"} 100.00305' in lines
    assert 'pgherd_commit_wait_seconds_count{member="n1"} 4' in lines
