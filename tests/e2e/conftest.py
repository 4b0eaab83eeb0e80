"""A kind cluster with the images loaded and the operator installed, for the whole session.

Everything that differs between machines comes from the environment:

    PGHERD_KIND, PGHERD_KUBECTL, PGHERD_HELM   programs, else from the PATH or pytest-kind
    PGHERD_KIND_NODE_IMAGE                     image of the nodes; by default kind's own
    PGHERD_DOCKER_BUILD                        more options for `docker build`
    PGHERD_KIND_KEEP                           name of a cluster: use it if it is there, and keep it
    PGHERD_E2E_TAG                             of the images that are built; by default e2e
    PGHERD_E2E=required                        fail where there can be no cluster; else skip
"""

import os
from collections.abc import Iterator

import pytest

from .cluster import Herd, Kubectl
from .installation import found_herd, installed, provide_clients
from .preparation import PreparationError


@pytest.fixture(scope="session")
def kubectl() -> Iterator[Kubectl]:
    """A cluster with the operator in it; where there can be none that is said."""
    try:
        with installed() as found:
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
