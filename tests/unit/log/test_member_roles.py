"""The table of roles: what it allows, and the diagram of it in docs/protocol.md."""

import os
import re
from pathlib import Path

import pytest
from log_herd import Herd
from pgherd_sidecar.core.consensus import LocalProtocolError, Role
from pgherd_sidecar.core.consensus.follower import Follower
from pgherd_sidecar.core.consensus.roles import TRANSITIONS, RoleEvent, next_role

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
_DIAGRAM = re.compile(r"(?<=```mermaid\n)stateDiagram-v2\n.*?(?=```)", re.DOTALL)


def diagram() -> str:
    """The table as a diagram of Mermaid: an arrow for each two roles, and what leads along it."""
    lines = ["stateDiagram-v2", f"    [*] --> {Role.FOLLOWER.value} : start"]
    for role, transitions in TRANSITIONS.items():
        for following in Role:
            events = [event.value for event, to in transitions.items() if to is following]
            if events:
                label = "<br/>".join(events)
                lines.append(f"    {role.value} --> {following.value} : {label}")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text()
    if os.environ.get("PGHERD_TEST_WRITES_EXAMPLE"):
        PAGE.write_text(_DIAGRAM.sub(diagram(), text))
        text = PAGE.read_text()
    assert _DIAGRAM.findall(text) == [diagram()]


def test_the_statements_that_the_events_name_are_on_the_page() -> None:
    defined = set(re.findall(r"^- \*\*(\w\d+)\*\*", PAGE.read_text(), re.MULTILINE))
    named = {name for event in RoleEvent for name in re.findall(r"\b[A-Z]\d+\b", event.value)}
    assert named and named <= defined


@pytest.mark.parametrize("role", Role)
def test_what_the_table_does_not_have_is_an_error(role: Role) -> None:
    for event in set(RoleEvent) - TRANSITIONS[role].keys():
        with pytest.raises(LocalProtocolError, match=f"{event.name} .* {role.value}"):
            next_role(role, event)


def test_a_role_is_only_taken_as_the_table_says() -> None:
    """A member that would go on in another role than its peers rely on stops."""
    herd = Herd(3)
    elections = herd["n1"].member._elections
    with pytest.raises(LocalProtocolError, match="TIMEOUT makes no follower"):
        elections._become(RoleEvent.TIMEOUT, Follower(None, herd.now))
    with pytest.raises(LocalProtocolError, match="RECOVERED can't happen to a follower"):
        elections._become(RoleEvent.RECOVERED, Follower(None, herd.now))
    assert elections.state.role is Role.FOLLOWER
