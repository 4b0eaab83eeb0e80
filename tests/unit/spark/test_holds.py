"""Somebody can be made from a snapshot, whatever its members were about to trim then."""

from typing import Any, cast

import pytest
from pgherd_sidecar.agent.checkpoint.certstate import CertificationState, unpack
from pgherd_sidecar.core.consensus import Membership
from pgherd_spark.snapshots import holds

VIEW = Membership.fixed("n1", "n2").encode().decode()


def checkpoint(position: int, needed: int) -> bytes:
    state = CertificationState("c", position, position, 1, VIEW, b"", needed, 1, VIEW)
    return state.pack()


def test_no_member_trims_beyond_the_position_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trims up to its own checkpoint once the others have come so far: when it was just asked.

    Of the checkpoints the one with more of the log before it is not the one of the last position.
    """
    checkpoints = {"n1": checkpoint(337, 320), "n2": checkpoint(331, 331)}
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(holds, "_hold", lambda member, about: asked.append((member, about[2])))
    monkeypatch.setattr(holds, "_checkpoint", lambda member: checkpoints[member])
    members = cast("Any", {name: name for name in checkpoints})
    state = unpack(holds.state_before(members, 60))
    assert asked == [("n1", 0), ("n2", 0), ("n1", 320), ("n2", 320)]
    for trimmed in (337, 331):  # by n1, and by n2
        assert trimmed <= state.position
