"""Which servers may subscribe, and as which role a feeder may write there."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from pgherd_sidecar.subscribing.state.errors import StoppedError
from pgherd_sidecar.subscribing.state.herd import Subscription
from pgherd_sidecar.subscribing.state.subscriber import Subscriber, require_fit
from pgherd_sidecar.tables.sessions import Session

_PLAIN: dict[str, Any] = {
    "version": 170000, "standby": False, "herd": False, "made": False, "ready": False,
    "may_create": True, "role": "report", "revised": False, "turned": False, "superuser": False,
}  # fmt: skip
_HERD = _PLAIN | {"herd": True, "superuser": True, "made": True, "ready": True, "revised": True}


class _Session:
    """A herd's member, which says that the role is a superuser, and notes what is executed."""

    description = "of rows"

    def __init__(self, *, locks: bool) -> None:
        self.executed: list[str] = []
        self._locks = locks
        self._rows: list[Mapping[str, Any]] = []

    async def execute(self, statement: str, _: object = None) -> "_Session":
        """See psycopg."""
        self.executed.append(statement)
        self._rows = [{"locked": self._locks}] if "pg_try_advisory_lock" in statement else [_HERD]
        return self

    async def fetchall(self) -> list[Mapping[str, Any]]:
        """See psycopg."""
        return self._rows


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"version": 140011}, "older than PostgreSQL 15"),
        ({"standby": True}, "is a standby"),
        ({"may_create": False}, "role report may not create schemas there"),
        ({"herd": True, "superuser": True}, "role report is a superuser there"),
    ],
)
def test_a_server_that_can_not_subscribe_says_why(more: dict[str, Any], why: str) -> None:
    require_fit(_PLAIN)
    require_fit(_PLAIN | {"superuser": True})  # whose triggers would fire is his own matter
    require_fit(_PLAIN | {"herd": True})
    with pytest.raises(StoppedError, match=why):
        require_fit(_PLAIN | more)


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize("act", ["lock", "claim", "needed", "attach", "leave", "revision"])
async def test_a_superuser_runs_nothing_that_others_have_made_in_a_herd(
    act: str, *, locks: bool
) -> None:
    """They may have put triggers and views where a feeder reads and writes."""
    session = _Session(locks=locks)
    ordered = Subscription("s", "s", "host=x", 1, 1, 1.0, None, None, ("a.t",), revision=1)
    one = Subscriber(cast("Session", session), ordered)
    with pytest.raises(StoppedError, match="ordinary role"):
        await getattr(one, act)(*(["herd"] if act == "attach" else []))
    ours = [text for text in session.executed if "pg_try_advisory_lock" not in text]
    assert len(ours) == 1 and "server_version_num" in ours[0]
