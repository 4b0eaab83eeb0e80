"""Signals end commands: some were not done then, and some have no other end."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.client.errors import HerdError


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Whoever started the tests may have had these signals ignored, as ``nohup`` does."""
    before = {
        number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGTERM)
    }
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def _goes_on(signal_number: int, ended: list[str]) -> None:
    os.kill(os.getpid(), signal_number)
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("in order")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_what_has_no_end_of_its_own_is_ended_by_a_signal_without_an_error(number: int) -> None:
    ended: list[str] = []
    options.serve(_goes_on(number, ended))
    assert ended == ["in order"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_to_be_done_is_not_done_when_a_signal_comes(number: int) -> None:
    ended: list[str] = []
    with pytest.raises(HerdError, match="interrupted"):
        options.run(_goes_on(number, ended))
    assert ended == ["in order"]


def test_an_error_of_what_has_no_end_is_one() -> None:
    async def fails() -> None:
        raise HerdError("no")

    with pytest.raises(HerdError, match="no"):
        options.serve(fails())


def test_a_signal_that_is_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def goes_on() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return "to its end"

    assert options.run(goes_on()) == "to its end"
