"""The driver's program on Kubernetes: what it understands, and how it says how far it is."""

import json
import urllib.request

import pytest
from pgherd_spark import kubernetes
from pgherd_spark.progress import Progress, served


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
