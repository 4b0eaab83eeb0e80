"""The operator's package lies in a folder of its own, and has dependencies of its own."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog

REPOSITORY = Path(__file__).parents[3]
if find_spec("pgherd_operator") is None:
    sys.path.insert(0, str(REPOSITORY / "operator"))

_MISSING = [name for name in ("cryptography", "jsonschema", "kopf", "yaml") if not find_spec(name)]
collect_ignore_glob = ["test_*.py"] if _MISSING else []
if _MISSING:
    sys.stderr.write(f"tests of the operator are left out: no {', '.join(_MISSING)} here\n")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One kind of loop is enough for code that never looks at it."""
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def _no_logs() -> None:
    """Thousands of reconciliations would fill the report of a failure."""
    structlog.configure(processors=[_drop])


def _drop(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raise structlog.DropEvent
