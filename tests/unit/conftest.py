"""Asynchronous tests run on the loop that the sidecar runs on, and on asyncio's own.

No generated example is timed: a busy machine is no defect.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import settings

settings.register_profile("pgherd", deadline=None)
settings.load_profile("pgherd")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test once with each kind of event loop."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
