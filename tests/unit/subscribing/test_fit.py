"""Which servers may subscribe, and as which role a feeder may write there."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import psycopg
import pytest
from pgherd_sidecar.subscribing.state.errors import MovedOnError, StoppedError
from pgherd_sidecar.subscribing.state.herd import FENCED, RELEASED, TAKEN_OVER, Subscription
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


class _Fenced(_Session):
    """A plain server whose subscription has a revision of no order."""

    def __init__(self, revision: int) -> None:
        super().__init__(locks=True)
        self._revision = revision

    async def execute(self, statement: str, _: object = None) -> "_Session":
        """See psycopg."""
        is_look = "server_version_num" in statement
        self._rows = [_PLAIN | {"ready": True} if is_look else {"revision": self._revision}]
        return self


@pytest.mark.parametrize(
    ("revision", "error", "why"),
    [
        (FENCED, StoppedError, "shut this herd out"),
        (TAKEN_OVER, MovedOnError, "takes writes"),
        (RELEASED, MovedOnError, "takes writes"),  # a switchover says so by itself
        (2, MovedOnError, "later order"),
    ],
)
async def test_a_feeder_before_a_fence_stops_and_says_why(
    revision: int, error: type[Exception], why: str
) -> None:
    """It waited for ever, as before an order that is only later."""
    ordered = Subscription("s", "s", "host=x", 1, 1, 1.0, None, None, ("a.t",), revision=1)
    one = Subscriber(cast("Session", _Fenced(revision)), ordered)
    with pytest.raises(error, match=why):
        await one.require_order()
    failover = msgspec.structs.replace(ordered, revision=revision)
    await Subscriber(cast("Session", _Fenced(revision)), failover).require_order()


class _Left(_Session):
    """A plain server where the end of the last subscription comes in between."""

    def __init__(self, *, made_again: bool) -> None:
        super().__init__(locks=True)
        self._looks = [{"ready": True}, {"ready": made_again}]

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield

    async def execute(self, statement: str, _: object = None) -> "_Session":
        """See psycopg."""
        if "INSERT INTO pgherd_subscriber.standing" in statement:
            raise psycopg.errors.UndefinedTable
        if "server_version_num" in statement:
            self._rows = [_PLAIN | {"made": True} | self._looks.pop(0)]
        return self


@pytest.mark.parametrize("made_again", [False, True])
async def test_what_another_one_has_removed_as_it_left_is_made_again_and_damage_is_told(
    made_again: bool,
) -> None:
    ordered = Subscription("s", "s", "host=x", 1, 1, 1.0, None, None, (), revision=1)
    one = Subscriber(cast("Session", _Left(made_again=made_again)), ordered)
    with pytest.raises(psycopg.errors.UndefinedTable if made_again else MovedOnError):
        await one.attach("herd")
