"""Looks that recur fall due together."""

import asyncio

import pytest
from pgherd_sidecar.agent.base.beat import until_next_s


@pytest.mark.parametrize(
    ("now_s", "pace_s", "expected_s"),
    [(0.0, 0.1, 0.1), (0.3, 0.1, 0.1), (7.25, 0.1, 0.05), (7.2999, 0.1, 0.1), (8.6, 0.5, 0.4)],
)
async def test_it_is_never_due_at_once_and_always_at_a_multiple(
    monkeypatch: pytest.MonkeyPatch, now_s: float, pace_s: float, expected_s: float
) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    assert until_next_s(pace_s) == pytest.approx(expected_s)
