"""Orders about subscriptions are carried out by a process, whose words are answers and refusals."""

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pgherd_sidecar.agent.admin.port import Refused, Unavailable
from pgherd_sidecar.agent.base.config import MemberAddress, NodeConfig, PostgresAddress
from pgherd_sidecar.agent.subscriptions import orders
from pgherd_sidecar.agent.subscriptions.orders import SubscriptionOrders
from pgherd_sidecar.client.routes import DropSetRequest, SubscriptionRequest

WANTED = SubscriptionRequest("w", "orders", "host=x password=secret")


def of(tmp_path: Path) -> SubscriptionOrders:
    """Those of a node whose server is not there."""
    config = NodeConfig(
        cluster_id=uuid4(),
        name="n1",
        number=1,
        members=(MemberAddress(name="n1", number=1, host="127.0.0.1", port=1),),
        data_dir=tmp_path,
        postgres=PostgresAddress(host=str(tmp_path), port=5432, database="app"),
        hook_dir=tmp_path,
        admin_socket=tmp_path / "admin.sock",
    )
    return SubscriptionOrders(config, lambda: None)


def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str) -> Path:
    """The process is another one, which keeps what it is given and prints a line."""
    heard = tmp_path / "heard"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat > {heard}\necho '{line}'\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return heard


async def test_the_order_goes_by_the_standard_input_and_the_answer_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard = says(monkeypatch, tmp_path, '{"answer": {"ordered": true}}')
    assert await of(tmp_path).order(WANTED) == {"ordered": True}
    order: dict[str, Any] = json.loads(heard.read_text())
    assert (order["kind"], order["request"]["set"]) == ("order_subscription", "orders")
    assert order["request"]["dsn"] == "host=x password=secret"
    assert "dbname=app" in order["conninfo"]


@pytest.mark.parametrize(
    ("line", "error", "told"),
    [
        ('{"refused": "no table is meant"}', Refused, "no table is meant"),
        ('{"unavailable": "starting"}', Unavailable, "starting"),
        ("Traceback: host=x password=secret", Unavailable, "what carries out the order has failed"),
        ("", Unavailable, "what carries out the order has failed"),
    ],
)
async def test_what_it_says_is_a_refusal_or_may_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, error: type[Exception], told: str
) -> None:
    says(monkeypatch, tmp_path, line)
    with pytest.raises(error, match=told) as raised:
        await of(tmp_path).order(WANTED)
    assert "secret" not in str(raised.value)


async def test_one_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    says(monkeypatch, tmp_path, "")
    (tmp_path / "program").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(orders, "_LONGEST_S", 0.2)
    with pytest.raises(Unavailable, match="not within"):
        await of(tmp_path).drop_set(DropSetRequest("orders"))


async def test_the_real_process_says_that_the_server_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        await of(tmp_path).order(WANTED)


async def test_a_member_that_takes_no_writes_does_not_begin(tmp_path: Path) -> None:
    def refuse() -> None:
        raise Unavailable("this member takes no writes")

    it = of(tmp_path)
    it._require_ready = refuse
    with pytest.raises(Unavailable, match="takes no writes"):
        await it.order(WANTED)
