"""The sidecar as a process: what it keeps, how it ends, what it says. Runs a stand-in replica."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pgherd_sidecar.agent.base.config import MemberAddress, NodeConfig, PostgresAddress, Tls
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from places import free_port

PATIENCE_S = 30.0
STAND_IN = """
import asyncio, os, sys
from pgherd_sidecar.agent.log.news import LogListener
from pgherd_sidecar.agent.process import run_sidecar

class StandIn(LogListener):
    changes = None
    roles = None
    maintenance = None
    subscriptions = None
    def __init__(self, config, host, identity):
        self.host, self.finished = host, asyncio.Event()
        identity.next_incarnation()
    async def run(self):
        {act}
        await self.finished.wait()
    async def stop(self):
        self.finished.set()
    def proposer_changed(self):
        self.host.submit(b'x', 1)

run_sidecar(["--config", sys.argv[1]], StandIn)
"""


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    return NodeConfig(
        cluster_id=uuid4(),
        name="n1",
        number=1,
        members=(MemberAddress(name="n1", number=1, host="127.0.0.1", port=free_port()),),
        data_dir=tmp_path / "data",
        postgres=PostgresAddress(host=str(tmp_path), port=5432),
        hook_dir=tmp_path,
        admin_socket=tmp_path / "admin.sock",
    )


class Process:
    """A running sidecar, and the log lines it has written."""

    def __init__(self, config: NodeConfig, act: str = "pass") -> None:
        file = config.data_dir.parent / "node.json"
        file.write_text(config.model_dump_json())
        self.child = subprocess.Popen(
            [sys.executable, "-c", STAND_IN.format(act=act), str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stderr is not None
        self.stderr = self.child.stderr

    def until(self, event: str) -> dict[str, object]:
        for line in self.stderr:
            fields: dict[str, object] = json.loads(line)
            if fields["event"] == event:
                return fields
        raise AssertionError(f"ended without {event}")

    def ended(self) -> tuple[int, str]:
        _, text = self.child.communicate(timeout=PATIENCE_S)
        return self.child.returncode, text


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.child.kill()
        process.child.wait()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(
    config: NodeConfig, processes: list[Process], number: signal.Signals
) -> None:
    processes.append(process := Process(config))
    assert process.until("process.started")["member"] == "n1"
    process.child.send_signal(number)
    code, text = process.ended()
    assert code == 0
    assert json.loads(text.splitlines()[-1])["event"] == "process.stopped"
    assert not config.admin_socket.exists()


def test_it_may_open_as_many_files_as_the_system_allows(
    config: NodeConfig, processes: list[Process]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        processes.append(process := Process(config))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    process.until("process.started")
    assert resource.prlimit(process.child.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_second_sidecar_on_the_same_directory_is_refused_in_one_line(
    config: NodeConfig, processes: list[Process]
) -> None:
    processes.append(first := Process(config))
    first.until("process.started")
    processes.append(second := Process(config))
    code, text = second.ended()
    assert code == 2
    assert text == f"pgherd-sidecar: error: another sidecar runs on {config.data_dir}\n"


def test_a_killed_sidecar_leaves_no_lock_and_starts_again(
    config: NodeConfig, processes: list[Process]
) -> None:
    incarnations = []
    for _ in range(2):
        processes.append(process := Process(config))
        process.until("process.started")
        process.child.kill()
        process.child.wait()
        identity = StoredIdentity(config)
        incarnations.append(identity.incarnation)
        identity.close()
    assert incarnations[1] == incarnations[0] + 1 > 1


def test_a_bad_configuration_is_one_line_and_status_2(
    config: NodeConfig, processes: list[Process]
) -> None:
    broken = config.model_copy(update={"name": "n9"})
    processes.append(process := Process(broken))
    code, text = process.ended()
    assert code == 2
    assert len(text.splitlines()) == 1 and "n9" in text


def test_certificates_that_can_not_be_used_are_named_and_status_2(
    config: NodeConfig, processes: list[Process], tmp_path: Path
) -> None:
    processes.append(
        process := Process(config.model_copy(update={"tls": Tls(directory=tmp_path / "tls")}))
    )
    assert "tls/ca.crt: No such file" in str(process.until("tls.refused")["error"])
    assert process.ended()[0] == 2


@pytest.mark.parametrize(
    "act",
    [
        "raise RuntimeError('planted')",
        "asyncio.get_running_loop().call_soon(lambda: 1 / 0)",
    ],
)
def test_a_defect_is_logged_with_its_traceback_and_status_1(
    config: NodeConfig, processes: list[Process], act: str
) -> None:
    processes.append(process := Process(config, act))
    crash = process.until("process.crashed")
    assert "Traceback" in str(crash["exception"])
    assert process.ended()[0] == 1


def test_trouble_of_a_connection_ends_nothing(config: NodeConfig, processes: list[Process]) -> None:
    act = (
        "asyncio.get_running_loop().call_exception_handler("
        "{'message': 'transport', 'exception': OSError('unreachable')})"
    )
    processes.append(process := Process(config, act))
    process.until("loop.complained")
    process.child.terminate()
    assert process.ended()[0] == 0


def test_a_failed_disk_ends_it_at_once_with_status_70(
    config: NodeConfig, processes: list[Process]
) -> None:
    act = "self.host._storage.close()"
    act += "; self.host.listen(self)"  # and it submits something
    processes.append(process := Process(config, act))
    assert "closed" in str(process.until("log.failed")["error"])
    assert process.ended()[0] == 70


def test_a_damaged_log_is_not_started_on(config: NodeConfig, processes: list[Process]) -> None:
    processes.append(process := Process(config))
    process.until("proposer.changed")
    process.child.kill()
    process.child.wait()
    control = config.data_dir / "log" / "control"
    control.write_bytes(b"damaged\n")
    processes.append(again := Process(config))
    again.until("log.refused")
    assert again.ended()[0] == 70


def test_what_a_killed_process_has_renamed_is_durable_before_it_counts(
    config: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoredIdentity(config).close()
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
    )
    StoredIdentity(config).close()
    assert synced == [str(config.data_dir)]


@pytest.mark.parametrize("setting", ["certification_keys", "sequence_slots"])
def test_a_setting_that_is_for_life_can_not_change(config: NodeConfig, setting: str) -> None:
    StoredIdentity(config).close()
    StoredIdentity(config).close()
    if setting == "sequence_slots":
        other = config.model_copy(update={setting: 16})
    else:
        limits = config.limits.model_copy(update={setting: 100_000})
        other = config.model_copy(update={"limits": limits})
    with pytest.raises(IdentityError, match=rf"{setting}=\d+.* configured with .*{setting}=1"):
        StoredIdentity(other)
    StoredIdentity(config).close()


def test_a_directory_of_another_cluster_is_refused_naming_both(config: NodeConfig) -> None:
    StoredIdentity(config).close()
    other = config.model_copy(update={"cluster_id": uuid4()})
    with pytest.raises(IdentityError) as refusal:
        StoredIdentity(other)
    assert str(config.cluster_id) in str(refusal.value)
    assert str(other.cluster_id) in str(refusal.value)
    StoredIdentity(config).close()


def test_a_directory_of_another_member_is_refused(config: NodeConfig) -> None:
    StoredIdentity(config).close()
    with pytest.raises(IdentityError, match="belongs to member n1"):
        StoredIdentity(config.model_copy(update={"name": "n2", "number": 2}))


def test_c18_an_empty_disk_is_a_new_identity_and_a_kept_one_is_the_same(
    config: NodeConfig, tmp_path: Path
) -> None:
    first = StoredIdentity(config)
    first.close()
    again = StoredIdentity(config)
    again.close()
    empty = StoredIdentity(config.model_copy(update={"data_dir": tmp_path / "empty"}))
    empty.close()
    assert first.disk_id == again.disk_id != empty.disk_id


def test_c18_a_member_that_has_lost_its_log_does_not_start(
    config: NodeConfig, processes: list[Process]
) -> None:
    processes.append(process := Process(config))
    process.until("process.started")
    process.child.terminate()
    assert process.ended()[0] == 0
    shutil.rmtree(config.data_dir / "log")
    processes.append(again := Process(config))
    code, text = again.ended()
    assert code == 2
    assert len(text.splitlines()) == 1 and "has lost its log" in text


def test_c18_a_directory_that_turns_out_not_to_be_this_member_s_ends_it_with_status_2(
    config: NodeConfig, processes: list[Process]
) -> None:
    act = (
        "from pgherd_sidecar.agent.membership.identity import IdentityError; "
        "raise IdentityError('planted')"
    )
    processes.append(process := Process(config, act))
    assert process.until("identity.refused")["error"] == "planted"
    assert process.ended()[0] == 2


def test_c12_an_incarnation_is_never_given_twice(config: NodeConfig) -> None:
    StoredIdentity(config).close()
    (config.data_dir / "log").mkdir()
    (config.data_dir / "log" / "control").touch()
    given = []
    for _ in range(3):
        identity = StoredIdentity(config)
        given += [identity.next_incarnation(), identity.next_incarnation()]
        identity.close()
    assert given == list(range(given[0], given[0] + 6))


def test_a_log_without_its_identity_is_refused(config: NodeConfig) -> None:
    (config.data_dir / "log").mkdir(parents=True)
    with pytest.raises(IdentityError, match="holds a log but no identity"):
        StoredIdentity(config)


def test_a_damaged_identity_is_refused_not_replaced(config: NodeConfig) -> None:
    StoredIdentity(config).close()
    path = config.data_dir / "identity.json"
    path.write_text("{}")
    with pytest.raises(IdentityError, match="damaged"):
        StoredIdentity(config)
    assert path.read_text() == "{}"
