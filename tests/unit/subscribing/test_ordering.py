"""What is ordered of a herd: what is not read again, and by whom it is answered."""

from typing import Any, cast

import msgspec
import pytest
from pgherd_sidecar.client.routes import SetRequest
from pgherd_sidecar.subscribing.ordering import process
from pgherd_sidecar.subscribing.ordering.sets import _as_known
from pgherd_sidecar.subscribing.state.herd import TableSelection, TableSet, herd_query
from pgherd_sidecar.tables.sessions import Session


def test_filters_are_read_once_and_anew_when_the_set_is_not_as_they_say() -> None:
    part = TableSelection("a.t", None, "(id > 0)", ("id",))
    known = TableSet("s", ("a.t", "b.t"), (), (), (part,))

    def wanted(*told: str) -> SetRequest:
        return SetRequest("s", chosen=["a.t WHERE (id > 0)"], chosen_tables=list(told))

    assert _as_known(wanted("a.t"), known) == [part]
    assert _as_known(wanted(), known) is None
    assert _as_known(wanted("a.t", "c.t"), known) is None
    assert _as_known(wanted("a.t"), None) is None
    assert _as_known(SetRequest("s", tables=["a.*"]), known) == []


class _AskedError(Exception):
    """The first statement was executed; it is the message."""


class _Session:
    async def execute(self, statement: str, *_: object) -> None:
        """See psycopg."""
        raise _AskedError(statement)


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("order_set", {"name": "s", "tables": ["a.*"]}),
        ("drop_set", {"name": "s"}),
        ("order_subscription", {"name": "s", "set": "s", "dsn": "host=warehouse"}),
        ("end_subscription", {"name": "s"}),
    ],
)
async def test_a_member_that_is_behind_catches_up_before_it_answers(
    kind: str, request_: dict[str, Any]
) -> None:
    """It would refuse what another one has just made possible, or call an order ended."""
    request = msgspec.Raw(msgspec.json.encode(request_))
    with pytest.raises(_AskedError) as first:
        await process._ACTS[kind](cast("Session", _Session()), request)
    assert str(first.value) == herd_query("strong")
