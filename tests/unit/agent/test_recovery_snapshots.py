"""A member is not made from a snapshot whose certification state is not its own."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pgherd_sidecar.agent.base.errors import UnfitError
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.agent.recovery import snapshots
from pgherd_sidecar.core.consensus import Membership
from pgherd_sidecar.core.replication.state import ReplicatedState

CHECKPOINT = ReplicatedState((1,)).checkpoint()
VIEW = Membership.fixed("n1", "n2", "n3").encode().decode()
STATE = CertificationState("c", 20, 15, 3, VIEW, CHECKPOINT, 12, 3, VIEW)


def write(directory: Path, gid: int) -> None:
    content = STATE.pack()
    (directory / "certification").write_bytes(content)
    described = {"file": "certification", "sha256": hashlib.sha256(content).hexdigest()}
    server = {"encoding": "UTF8", "collate": "C", "ctype": "C"}
    manifest = {
        "gid": gid,
        "certification": described,
        "servers": {"n1": server},
        "local_tables": [],
        "shared": [],
        "role_limits": {},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def test_the_state_of_a_position_before_the_rows_is_read(tmp_path: Path) -> None:
    write(tmp_path, 20)
    carried, state = snapshots._read(tmp_path, "S")
    assert (carried.gid, state) == (20, STATE)


def test_a_state_of_a_position_after_the_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 19)
    with pytest.raises(UnfitError, match="is damaged"):
        snapshots._read(tmp_path, "S")


def test_a_state_that_was_put_in_place_of_another_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 20)
    (tmp_path / "certification").write_bytes(replace(STATE, position=19).pack())
    with pytest.raises(UnfitError, match="is damaged"):
        snapshots._read(tmp_path, "S")


class Others:
    """The members, whose logs begin after a position."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.held: list[int] = []

    async def offers(self) -> list[object]:
        return [object()]

    async def hold_log(self, position: int) -> None:
        self.held.append(position)

    async def log_base(self) -> int:
        return self.base


@pytest.mark.parametrize(("base", "begins"), [(12, 12), (13, 20), (20, 20)])
async def test_the_log_before_the_state_s_own_position_may_be_gone(base: int, begins: int) -> None:
    """A member has trimmed up to a checkpoint, because the others had come further meanwhile."""
    others = Others(base)
    found = await snapshots.require_log("S", STATE, cast("Any", others))
    assert found.needed_base.position == begins
    assert (found.position, found.state, others.held) == (20, STATE.state, [12])


async def test_the_log_after_the_state_s_position_must_be_there() -> None:
    with pytest.raises(UnfitError, match="the log from GID 21 on, the members have it from 22"):
        await snapshots.require_log("S", STATE, cast("Any", Others(21)))
