"""A kind cluster with the images loaded and the operator installed, for the whole session.

Everything that differs between machines comes from the environment:

    PGHERD_KIND, PGHERD_KUBECTL, PGHERD_HELM   programs, else from the PATH or pytest-kind
    PGHERD_KIND_NODE_IMAGE                     image of the nodes; by default kind's own
    PGHERD_DOCKER_BUILD                        more options for `docker build`
    PGHERD_KIND_KEEP                           name of a cluster: use it if it is there, and keep it
    PGHERD_E2E_TAG                             of the images that are built; by default e2e
    PGHERD_E2E=required                        fail where there can be no cluster; else skip
    PGHERD_E2E_SHARD=1/4                       the first quarter of the files only
"""

import os
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from trouble import require_none

from benchmarks.trouble import Logs

from .cluster import Herd, Kubectl
from .installation import found_herd, installed, provide_clients
from .podlogs import PodLogs
from .preparation import PreparationError
from .shards import files_of

_LOGS = pytest.StashKey[Logs]()
"""Of all sidecars of the cluster, once there is one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the shard that is asked for."""
    shard = os.environ.get("PGHERD_E2E_SHARD")
    if not shard:
        return
    try:
        files = files_of(shard, Counter(item.path for item in items))
    except ValueError as error:
        raise pytest.UsageError(f"PGHERD_E2E_SHARD: {error}") from error
    config.hook.pytest_deselected(items=[item for item in items if item.path not in files])
    items[:] = [item for item in items if item.path in files]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that passed while a sidecar had trouble that it does not name."""
    yield
    _require_no_trouble(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """The same for what came since, in fixtures and in a failed test."""
    yield
    _require_no_trouble(item)


def _require_no_trouble(item: pytest.Item) -> None:
    if (logs := item.config.stash.get(_LOGS, None)) is not None:
        require_none(item, logs)


@pytest.fixture(scope="session")
def kubectl(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubectl]:
    """A cluster with the operator in it; where there can be none that is said."""
    try:
        with installed() as found:
            pods = PodLogs(found, tmp_path_factory.mktemp("podlogs"))
            with pods.followed() as pytestconfig.stash[_LOGS]:
                yield found
    except PreparationError as error:
        text = f"NO END-TO-END TESTS: {error}"
        if os.environ.get("PGHERD_E2E") == "required":
            pytest.fail(text)
        pytest.skip(text)


@pytest.fixture(scope="session")
def herd(kubectl: Kubectl) -> Herd:
    """Three members that take writes, in a namespace that lets restricted pods in only."""
    found_herd(kubectl)
    return provide_clients(kubectl)
