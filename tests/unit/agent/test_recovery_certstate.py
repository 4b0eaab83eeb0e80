"""A checkpoint is used only with a database and a log that it fits to."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_sidecar.agent.base.errors import LeftBehindError, UnreadableError
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState
from pgherd_sidecar.core.consensus import LogBase, Membership
from pgherd_sidecar.core.replication.checkpoint import CheckpointError
from pgherd_sidecar.core.replication.entries import Noop
from pgherd_sidecar.core.replication.state import ReplicatedState


def fresh() -> ReplicatedState:
    return ReplicatedState([1, 2, 3])


def state_at(position: int) -> bytes:
    state = fresh()
    for gid in range(1, position + 1):
        state.deliver(gid, Noop())
    return state.checkpoint()


CHECKPOINT = CertificationState(
    cluster_id="c",
    position=20,
    last_commit=15,
    term=3,
    membership=Membership.fixed("n1", "n2").encode().decode(),
    state=state_at(20),
    needed_position=4,
    needed_term=2,
    needed_membership=Membership.fixed("n1").encode().decode(),
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    CHECKPOINT.write(tmp_path)
    assert certstate.read(tmp_path) == CHECKPOINT


def test_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    assert certstate.read(tmp_path) is None


def test_it_says_where_a_log_begins_that_goes_on_from_it() -> None:
    base = CHECKPOINT.log_base
    assert (base.position, base.term) == (20, 3)
    assert base.membership == Membership.fixed("n1", "n2")


def test_it_says_where_a_log_begins_that_can_feed_every_member() -> None:
    assert CHECKPOINT.needed_base == LogBase(4, 2, Membership.fixed("n1"))


@given(st.data())
def test_damage_is_never_read_as_another_checkpoint(data: st.DataObject) -> None:
    whole = CHECKPOINT.pack()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        found = certstate.unpack(damaged)
    except CheckpointError:
        return
    with pytest.raises(LeftBehindError):  # the damage is in the state, which has its own checksum
        certstate.state_for(found, fresh(), chain_end=20, log_base=20)


@given(st.integers(0, 200))
def test_a_torn_file_is_no_checkpoint(size: int) -> None:
    whole = CHECKPOINT.pack()
    torn = whole[: min(size, len(whole) - len(CHECKPOINT.state) - 1)]
    with pytest.raises(CheckpointError):
        certstate.unpack(torn)


@pytest.mark.parametrize("text", [b'{"position": 20}', b'{"epoch": 1}', b"[]", b"position 20"])
def test_one_of_another_version_is_no_checkpoint(text: bytes, tmp_path: Path) -> None:
    head = struct.pack(">8sII", CHECKPOINT.pack()[:8], len(text), zlib.crc32(text))
    with pytest.raises(CheckpointError, match="version"):
        certstate.unpack(head + text)
    (tmp_path / certstate.FILE).write_bytes(head + text)
    assert certstate.read(tmp_path) is None


@pytest.mark.parametrize("chain_end", [15, 17, 20, 99])
@pytest.mark.parametrize("log_base", [0, 10, 20])
def test_it_fits_if_the_database_has_its_last_commit_and_the_log_goes_on_from_it(
    chain_end: int, log_base: int
) -> None:
    state = certstate.state_for(CHECKPOINT, fresh(), chain_end=chain_end, log_base=log_base)
    assert state.position == 20


@pytest.mark.parametrize("chain_end", [0, 14])
def test_with_a_database_that_is_older_the_whole_log_is_needed(chain_end: int) -> None:
    state = certstate.state_for(CHECKPOINT, fresh(), chain_end=chain_end, log_base=0)
    assert state.position == 0
    with pytest.raises(LeftBehindError, match=f"database ends at GID {chain_end}"):
        certstate.state_for(CHECKPOINT, fresh(), chain_end=chain_end, log_base=1)


def test_a_log_that_begins_after_the_checkpoint_leaves_a_hole() -> None:
    with pytest.raises(LeftBehindError, match="log begins at 22"):
        certstate.state_for(CHECKPOINT, fresh(), chain_end=99, log_base=21)


def test_without_a_checkpoint_only_the_whole_log_will_do() -> None:
    assert certstate.state_for(None, fresh(), chain_end=7, log_base=0).position == 0
    with pytest.raises(LeftBehindError, match="no checkpoint"):
        certstate.state_for(None, fresh(), chain_end=7, log_base=1)


def test_a_damaged_state_is_no_state() -> None:
    damaged = replace(CHECKPOINT, state=CHECKPOINT.state[:-1])
    with pytest.raises(LeftBehindError):
        certstate.state_for(damaged, fresh(), chain_end=20, log_base=1)


def whole_of_version(state: bytes, version: int) -> bytes:
    """A state as another version of pgherd would have packed it."""
    crc = zlib.crc32(state[14:], zlib.crc32(version.to_bytes(2)))
    return state[:8] + struct.pack(">HI", version, crc) + state[14:]


def other_description(text: bytes) -> bytes:
    """A file whose description has what this version does not know."""
    packed = CHECKPOINT.pack()
    return struct.pack(">8sII", packed[:8], len(text), zlib.crc32(text)) + text


OTHERS = [
    replace(CHECKPOINT, state=whole_of_version(CHECKPOINT.state, 99)).pack(),
    other_description(b'{"epoch": 1}'),
]


@pytest.mark.parametrize("content", OTHERS, ids=["state", "description"])
def test_one_of_another_version_is_not_taken_for_none(content: bytes, tmp_path: Path) -> None:
    """Else all members that are put back to an older version take their databases for lost."""
    (tmp_path / certstate.FILE).write_bytes(content)
    with pytest.raises(UnreadableError, match="start this member with the version that wrote it"):
        certstate.state_in(tmp_path, fresh(), chain_end=20, log_base=1)


@pytest.mark.parametrize("content", OTHERS, ids=["state", "description"])
def test_one_of_another_version_is_not_needed_with_the_whole_log(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / certstate.FILE).write_bytes(content)
    assert certstate.state_in(tmp_path, fresh(), chain_end=20, log_base=0).position == 0


def test_damage_is_never_taken_for_another_version(tmp_path: Path) -> None:
    """A database without a good checkpoint gets a copy; none would come of another version."""
    whole = CHECKPOINT.pack()
    for at in range(len(whole)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (tmp_path / certstate.FILE).write_bytes(damaged)
        with pytest.raises(LeftBehindError):
            certstate.state_in(tmp_path, fresh(), chain_end=20, log_base=1)


def test_one_that_does_not_fit_is_not_asked_for_its_version(tmp_path: Path) -> None:
    content = replace(CHECKPOINT, state=whole_of_version(CHECKPOINT.state, 99)).pack()
    (tmp_path / certstate.FILE).write_bytes(content)
    with pytest.raises(LeftBehindError):
        certstate.state_in(tmp_path, fresh(), chain_end=14, log_base=1)
