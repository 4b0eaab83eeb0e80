"""What ends a session, and whether the process goes on: the vote of a member is in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    EntryFailedError,
    Failure,
    LeftBehindError,
    UnreadableError,
)
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.agent.recovery.progress import Phase, load_progress
from pgherd_sidecar.agent.service import replica as replica_module
from pgherd_sidecar.agent.service.replica import Replica
from pgherd_sidecar.agent.service.sessions import Sessions
from pgherd_sidecar.agent.standing.standing import Standing
from pgherd_sidecar.core.consensus.model.errors import LocalProtocolError
from pgherd_sidecar.env.storage.segments import StorageError
from pgherd_sidecar.pg.failures import Trouble
from pgherd_sidecar.pg.pipeline import ServerGoneError
from test_recovery_rebuild import World, config_in


@pytest.fixture
async def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replica]:
    config, recovery = config_in(tmp_path)
    recovery.data_directory.mkdir(parents=True, exist_ok=True)
    (recovery.data_directory / "PG_VERSION").touch()
    identity = StoredIdentity(config)
    monkeypatch.setattr(replica_module, "LocalMeans", lambda *_: World())
    host = LogHost(config, disk="d", on_failure=lambda error: None, on_split=lambda: None)

    async def unknown(_: Standing) -> bool:
        return False

    async def fence(self: Sessions, _: str) -> None:
        pass

    monkeypatch.setattr(Standing, "follow_log", unknown)
    monkeypatch.setattr(Sessions, "_fence", fence)
    yield Replica(config, host, identity)
    identity.close()


def failed(trouble: Trouble) -> BaseExceptionGroup[Exception]:
    failure = Failure(8, 7, trouble, "58030", "could not read", "rows")
    return BaseExceptionGroup("session", [EntryFailedError(failure)])


async def test_an_unforeseen_error_of_a_session_does_not_end_the_process(
    replica: Replica, tmp_path: Path
) -> None:
    replica._fitness.judge(BaseExceptionGroup("session", [TypeError("None"), KeyError("x")]))
    assert load_progress(tmp_path).phase is Phase.IDLE
    assert "None" in replica._fitness.reason
    replica._fitness.judge(ServerGoneError("gone"))
    replica._fitness.judge(psycopg.errors.UndefinedFunction("pgherd.outcomes"))
    assert replica._fitness.halted is None


@pytest.mark.parametrize(
    "error", [StorageError("disk"), LocalProtocolError("x"), IdentityError("lost"), SystemExit(3)]
)
async def test_what_is_wrong_with_the_log_or_the_identity_ends_the_process(
    replica: Replica, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        replica._fitness.judge(BaseExceptionGroup("session", [error]))


async def test_an_entry_that_fails_the_same_way_three_times_has_the_database_copied(
    replica: Replica, tmp_path: Path
) -> None:
    for _ in range(2):
        replica._fitness.judge(failed(Trouble.FAILED))
        assert load_progress(tmp_path).phase is Phase.IDLE
    replica._fitness.judge(failed(Trouble.FAILED))
    assert replica._fitness.diverged is not None
    assert replica._fitness.diverged.gid == 8
    assert load_progress(tmp_path).phase is Phase.IDLE  # it says so in the log first
    await replica._sessions._choose(replica._fitness.diverged)
    assert load_progress(tmp_path).phase is Phase.COPYING
    assert "3 times in a row" in load_progress(tmp_path).reason
    status = replica._fitness.incidents.status()
    assert status["divergences_total"] == {"rows": 1}


async def test_a_full_disk_has_nothing_copied_and_the_status_says_so(
    replica: Replica, tmp_path: Path
) -> None:
    for _ in range(50):
        replica._fitness.judge(failed(Trouble.DISK))
    assert load_progress(tmp_path).phase is Phase.IDLE
    assert replica._fitness.attempts.pause_s == 30
    reason = replica._fitness.attempts.reason(None)
    assert reason is not None and "disk of its server is full" in reason


async def test_an_entry_that_cannot_be_read_stops_the_database_without_a_copy(
    replica: Replica, tmp_path: Path
) -> None:
    replica._fitness.judge(BaseExceptionGroup("session", [UnreadableError("entry 42")]))
    assert load_progress(tmp_path).phase is Phase.IDLE
    assert isinstance(replica._fitness.halted, UnreadableError)
    found = replica._fitness.incidents.open
    assert found is not None and (found.kind, found.cure) == ("unreadable", "none")


async def test_a_divergence_begins_a_rebuild_and_is_remembered(
    replica: Replica, tmp_path: Path
) -> None:
    replica._fitness.judge(
        BaseExceptionGroup("session", [ServerGoneError("x"), DivergedError("GID 8")])
    )
    assert replica._fitness.diverged is not None
    await replica._sessions._choose(replica._fitness.diverged)
    assert load_progress(tmp_path).phase is Phase.COPYING
    found = replica._fitness.incidents.open
    assert found is not None and (found.kind, found.cure) == ("diverged", "rebuild")
    replica._fitness.judge(LeftBehindError("the rebuild was given up"))
