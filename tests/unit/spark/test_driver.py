"""The driver's program on Kubernetes: what it understands, and how it says how far it is."""

import json
import urllib.request
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_spark import kubernetes
from pgherd_spark.checking.findings import Findings
from pgherd_spark.progress import Progress, served
from pgherd_spark.reading.cluster import Cluster, JobError
from pgherd_spark.reading.leases import Member


def test_the_progress_is_told_to_whoever_asks() -> None:
    progress = Progress()
    with served(progress, 0) as port:

        def asked() -> dict[str, object]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                found = json.load(answer)
                assert isinstance(found, dict)
                return found

        assert asked() == {"doing": "starting", "done": 0, "tasks": 0}
        progress.say("reading")
        progress.count(3, 7)
        assert asked() == {"doing": "reading", "done": 3, "tasks": 7}


def test_an_outcome_fits_into_a_termination_message_whatever_the_names() -> None:
    names = [f"öffentlich.Aufträge_{number}_" + "ä" * 50 for number in range(10)]
    known = {"verdict": "different", "gid": 1, "odd_members": ["n1"]}
    lists = {"different_tables": names, "different_definitions": names, "not_compared": names}
    text = kubernetes.message(known | lists)
    told = json.loads(text)
    assert len(text) <= 4096
    assert known.items() <= told.items()
    assert all(told[name] == names[: len(told[name])] != [] for name in lists)
    assert len(kubernetes.message({"error": "ä" * 2000})) <= 4096


def test_an_outcome_that_is_short_enough_is_told_as_it_is() -> None:
    outcome = {"gid": 1, "location": None, "different_tables": ["öffentlich.t"]}
    assert json.loads(kubernetes.message(outcome)) == outcome


@pytest.mark.parametrize("order", ["{}", "no JSON", '{"job": "dance"}'])
def test_an_order_that_is_not_understood_is_said_to_be_so(order: str) -> None:
    assert "do not fit" in kubernetes.run(order, "local[1]", "1g")["error"]


class _Sidecar:
    """Of a member in some state, or of one that does not answer."""

    def __init__(self, state: str) -> None:
        self.state = state

    async def status(self) -> "_Sidecar":
        if self.state == "down":
            raise AdminError("down")
        return self


async def _asked(
    monkeypatch: pytest.MonkeyPatch, *states: str, allow_missing: bool = True
) -> tuple[list[str], list[str]]:
    """The names of the members that are read and that are left out; the third is a reader."""

    def reached(_: kubernetes.Order) -> dict[str, Any]:
        return {
            f"n{number}": Member(f"n{number}", cast(AdminClient, _Sidecar(state)), "")
            for number, state in enumerate(states, 1)
        }

    monkeypatch.setattr(kubernetes, "_members", reached)
    addresses = ({"name": "n1", "host": ""}, {"name": "n2", "host": ""})
    order = kubernetes.Order.model_validate(
        {
            "job": "check", "cluster_id": "", "database": "app", "postgres_port": 1,
            "admin_port": 1, "members": [*addresses, {"name": "n3", "host": "", "reader": True}],
            "allow_missing": allow_missing, "patience_s": 0,
        }
    )  # fmt: skip
    up, left_out = await kubernetes._ready(order, Progress())
    return list(up), left_out


async def test_readers_are_compared_and_who_is_left_out_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await _asked(monkeypatch, "primary", "primary", "reader") == (["n1", "n2", "n3"], [])
    assert await _asked(monkeypatch, "primary", "down", "recovering") == (
        ["n1"], ["n2: down", "n3: recovering"],
    )  # fmt: skip
    with pytest.raises(JobError, match="n2: down"):
        await _asked(monkeypatch, "primary", "down", "reader", allow_missing=False)
    with pytest.raises(JobError, match="n1: down"):  # nobody orders a marker
        await _asked(monkeypatch, "down", "down", "reader")


def test_the_outcome_of_a_check_names_who_was_compared_and_what_was_not() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    found = Findings(
        7, moment, moment, {"n1": ""}, {}, (), (), (), (), (), {"n1": {"index i": "locked"}},
        ("indexes on n1: no amcheck",), ("n2: down",),
    )  # fmt: skip
    told = kubernetes._told(cast(kubernetes.Order, _NoReport()), found, cast(Cluster, None))
    assert told["verdict"] == "incomplete"
    assert (told["members"], told["left_out"]) == (["n1"], ["n2: down"])
    assert told["not_compared"] == ["index i on n1: locked", "indexes on n1: no amcheck"]


class _NoReport:
    """An order that wants none."""

    destination = None
