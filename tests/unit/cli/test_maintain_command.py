"""``pgherd maintain``: what it asks the members."""

from typing import Any, cast

import pytest
from click.testing import CliRunner
from pgherd_sidecar.cli.main import main
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client import routes
from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.cluster import Voice
from pgherd_sidecar.client.maintenance import BegunAnswer


class Member:
    """Notes what is asked of it, and perhaps says nothing."""

    def __init__(self, *, answers: bool) -> None:
        self.asked: list[routes.MaintainRequest] = []
        self._answers = answers

    async def maintain(self, request: routes.MaintainRequest) -> BegunAnswer:
        self.asked.append(request)
        if not self._answers:
            raise AdminError("POST /maintenance: no answer within 35 s")
        return BegunAnswer(run=request.run, members=("n1", "n2"))


def test_what_is_asked_again_of_another_node_is_the_same_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one may have begun it, and only its answer was lost."""
    members = {"n1": Member(answers=False), "n2": Member(answers=True)}

    async def listen() -> list[Voice]:
        return [
            Voice(cast("Any", one), Status(name=name, cluster_id="c", state="primary"))
            for name, one in members.items()
        ]

    monkeypatch.setattr(options, "listen", lambda *_: listen)
    command = ["maintain", "--reindex", "t", "--no-wait"]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0
    (first,), (second,) = members["n1"].asked, members["n2"].asked
    assert first.run
    assert first == second
    CliRunner().invoke(main, command, catch_exceptions=False)
    assert members["n2"].asked[1].run != first.run
