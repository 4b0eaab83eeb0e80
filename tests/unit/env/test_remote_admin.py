"""The admin port: who may ask, and what happens when certificates are replaced. Real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from uuid import UUID

import aiohttp
import pytest
from link_ends import CLUSTER, authority, equip, pem
from pgherd_sidecar.agent.admin import remote
from pgherd_sidecar.agent.admin.port import AdminBackend, StatusValue
from pgherd_sidecar.agent.admin.remote import RemoteAdmin
from pgherd_sidecar.agent.base.config import MemberAddress, NodeConfig, PostgresAddress, Tls
from pgherd_sidecar.client.admin import AdminError, RemoteAdminClient
from pgherd_sidecar.env.network.tls import certified_name
from pgherd_sidecar.pki.authority import Authority
from pgherd_spark.stream.reach import Certificates, clients
from places import free_port


class Markers:
    async def drop(self, marker_id: str) -> None:
        assert marker_id == "1"


class Backend:
    """Has a status, and marker 1, and can be told to end."""

    markers = Markers()
    changes = None
    roles = None
    maintenance = None
    subscriptions = None

    async def status(self) -> Mapping[str, StatusValue]:
        return {"state": "primary"}

    async def shutdown(self) -> None:
        pass


def node(tmp_path: Path) -> NodeConfig:
    return NodeConfig(
        cluster_id=UUID(CLUSTER),
        name="n1",
        number=1,
        members=(MemberAddress(name="n1", number=1, host="127.0.0.1", port=free_port()),),
        data_dir=tmp_path,
        postgres=PostgresAddress(host="/", port=5432),
        hook_dir=tmp_path,
        admin_socket=tmp_path / "admin.sock",
        tls=Tls(directory=tmp_path / "n1"),
        admin_port=free_port(),
    )


@asynccontextmanager
async def serving(config: NodeConfig) -> AsyncIterator[None]:
    server = RemoteAdmin(config, cast(AdminBackend, Backend()))
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def status(config: NodeConfig, caller: Path | None, trusted: Authority) -> int:
    """Ask for the status as the holder of a certificate; return HTTP's status."""
    return await ask(config, caller, trusted, "GET", "/status")


async def ask(
    config: NodeConfig, caller: Path | None, trusted: Authority, method: str, path: str
) -> int:
    """Ask for something as the holder of a certificate; return HTTP's status."""
    context = ssl.create_default_context(cadata=pem(trusted))
    if caller is not None:
        context.load_cert_chain(caller / "tls.crt", caller / "tls.key")
    name = certified_name("n1", CLUSTER)
    url = f"https://127.0.0.1:{config.admin_port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, ssl=context, server_hostname=name) as answer,
    ):
        assert (answer.status == 200) == ("error" not in await answer.json())
        return answer.status


async def test_the_operator_is_answered_and_a_member_is_not(tmp_path: Path) -> None:
    ca = authority()
    config, member = node(tmp_path), equip(tmp_path / "n2", ca, "n2")
    equip(tmp_path / "n1", ca, "n1")
    operator = equip(tmp_path / "operator", ca, "operator")
    elsewhere = equip(tmp_path / "elsewhere", ca, "operator", cluster="another")
    async with serving(config):
        assert await status(config, operator, ca) == 200
        assert await status(config, member, ca) == 403
        assert await status(config, elsewhere, ca) == 403


async def test_the_jobs_may_ask_for_the_status_and_for_markers_and_nothing_else(
    tmp_path: Path,
) -> None:
    ca = authority()
    config, jobs = node(tmp_path), equip(tmp_path / "jobs", ca, "jobs")
    equip(tmp_path / "n1", ca, "n1")
    async with serving(config):
        assert await status(config, jobs, ca) == 200
        assert await ask(config, jobs, ca, "DELETE", "/marker/1") == 200
        for path in ("/shutdown", "/marker/../shutdown", "/marker/%2e%2e/shutdown"):
            assert await ask(config, jobs, ca, "POST", path) in (403, 404)
        assert await ask(config, jobs, ca, "POST", "/roles") == 403


async def test_a_client_elsewhere_knows_the_member_by_its_certificate(tmp_path: Path) -> None:
    ca = authority()
    config, jobs = node(tmp_path), equip(tmp_path / "jobs", ca, "jobs")
    equip(tmp_path / "n1", ca, "n1")
    context = ssl.create_default_context(cadata=pem(ca))
    context.load_cert_chain(jobs / "tls.crt", jobs / "tls.key")
    port = config.admin_port
    assert port is not None

    def client(member: str) -> RemoteAdminClient:
        return RemoteAdminClient("127.0.0.1", port, context, certified_name(member, CLUSTER))

    async with serving(config):
        await client("n1").drop_marker("1")
        with pytest.raises(AdminError, match="only operator"):
            await client("n1").shutdown()
        with pytest.raises(AdminError, match="certificate"):
            await client("n2").drop_marker("1")


async def test_nobody_is_heard_without_a_certificate_of_the_herd_s_authority(
    tmp_path: Path,
) -> None:
    ca, other = authority(), authority()
    config = node(tmp_path)
    equip(tmp_path / "n1", ca, "n1")
    stranger = equip(tmp_path / "stranger", other, "operator")
    async with serving(config):
        for caller in (None, stranger):
            with pytest.raises(aiohttp.ClientError):
                await status(config, caller, ca)


async def test_a_crowd_that_says_nothing_keeps_nobody_out_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_STRANGERS_MAX", 3)
    ca = authority()
    config = node(tmp_path)
    equip(tmp_path / "n1", ca, "n1")
    operator = equip(tmp_path / "operator", ca, "operator")
    async with serving(config):
        crowd = [await asyncio.open_connection("127.0.0.1", config.admin_port) for _ in range(4)]
        assert await crowd[0][0].read() == b""
        assert await status(config, operator, ca) == 200
        assert await crowd[1][0].read() == b""
        assert not crowd[3][0].at_eof()
        monkeypatch.setattr(remote, "_HANDSHAKE_S", 0.1)
        late, writer = await asyncio.open_connection("127.0.0.1", config.admin_port)
        assert await late.read() == b""
        assert not crowd[3][0].at_eof()
    assert await crowd[3][0].read() == b""
    for _, one in [*crowd, (late, writer)]:
        one.close()


async def test_an_authority_that_is_replaced_is_trusted_no_more_and_the_new_one_is(
    tmp_path: Path,
) -> None:
    old, new = authority(), authority()
    config = node(tmp_path)
    equip(tmp_path / "n1", old, "n1")
    formerly = equip(tmp_path / "formerly", old, "operator")
    operator = equip(tmp_path / "operator", new, "operator")
    async with serving(config):
        assert await status(config, formerly, old) == 200
        equip(tmp_path / "n1", new, "n1")
        assert await status(config, operator, new) == 200
        with pytest.raises(aiohttp.ClientError):
            await status(config, formerly, new)


async def test_files_that_can_not_be_used_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    ca = authority()
    config = node(tmp_path)
    equip(tmp_path / "n1", ca, "n1")
    operator = equip(tmp_path / "operator", ca, "operator")
    async with serving(config):
        (tmp_path / "n1" / "tls.crt").write_text("half a")
        assert await status(config, operator, ca) == 200


async def test_readers_of_changes_name_members_elsewhere_by_name_host_and_port(
    tmp_path: Path,
) -> None:
    ca = authority()
    config, jobs = node(tmp_path), equip(tmp_path / "jobs", ca, "jobs")
    equip(tmp_path / "n1", ca, "n1")
    certificates = Certificates(jobs, CLUSTER)
    named = [
        f"n1=127.0.0.1:{config.admin_port}",
        f"n2=127.0.0.1:{config.admin_port}",
        "/a=b/sock:1",
    ]
    known, another, local = clients(named, certificates)
    async with serving(config):
        await known.drop_marker("1")
        with pytest.raises(AdminError, match="certificate"):
            await another.drop_marker("1")
        with pytest.raises(AdminError, match="no sidecar listens at /a=b/sock:1"):
            await local.drop_marker("1")
    with pytest.raises(ValueError, match="needs the options `certificates` and `cluster`"):
        clients(named, None)
