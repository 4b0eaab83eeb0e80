"""Asynchronous tests run on the loop that the sidecar runs on.

With ``PGHERD_TEST_LOOPS=all`` they run once more on asyncio's own, as in ``make test-all``.

No generated example is timed: a busy machine is no defect. The examples are the same in each run,
and others with ``PGHERD_NEW_SEEDS=1``. Directories lie in memory: a disk that takes longer to flush
than an election lasts is not what these tests are about.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings
from places import in_memory
from seeds import NEW

_ROOM_BYTES = 1 << 28

settings.register_profile("pgherd", deadline=None, derandomize=not NEW)
settings.load_profile("pgherd")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each asynchronous test once with each kind of event loop that is wanted."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if os.environ.get("PGHERD_TEST_LOOPS") == "all":
        loops["asyncio"] = asyncio.new_event_loop
    return loops


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgherd-", dir=in_memory(_ROOM_BYTES)) as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def _no_default_herd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither meet nor make the herd that whoever runs the tests has by default."""
    monkeypatch.setenv("PGHERD_DIR", "/dev/null/herd")
