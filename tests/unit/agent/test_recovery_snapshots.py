"""A member is not made from a snapshot whose certification state is not its own."""

import hashlib
import json
from pathlib import Path

import pytest
from pgherd_sidecar.agent.errors import UnfitError
from pgherd_sidecar.agent.recovery import snapshots
from pgherd_sidecar.agent.recovery.certstate import CertificationState
from pgherd_sidecar.core.state import ReplicatedState

CHECKPOINT = ReplicatedState((1,)).checkpoint()
STATE = CertificationState(
    "c", position=20, last_commit=15, term=3, membership="", state=CHECKPOINT
)


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
    other = CertificationState("c", position=19, last_commit=15, term=3, membership="", state=b"")
    (tmp_path / "certification").write_bytes(other.pack())
    with pytest.raises(UnfitError, match="is damaged"):
        snapshots._read(tmp_path, "S")
