"""Asynchronous tests run on the loop that the sidecar runs on, and on asyncio's own."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test once with each kind of event loop."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
