"""What is dumped is a database of this cluster."""

from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pgherd_sidecar.agent.recovery import dump
from pgherd_sidecar.env.processes.programs import ProgramError


class Partner:
    """A session on a partner, which says of which cluster it is."""

    def __init__(self, cluster: str | None) -> None:
        self._cluster = cluster

    async def execute(self, *_: object) -> "Partner":
        return self

    async def fetchone(self) -> tuple[Any, ...]:
        said = {"gid": 9, "shared": [], "role_limits": {}}
        return said, "0-1", "UTF8", "C", "C", self._cluster

    async def fetchall(self) -> list[tuple[str, list[str]]]:
        return [("public.t", ["id"])]


async def described(cluster: str | None) -> int:
    holder = cast("psycopg.AsyncConnection[Any]", Partner(cluster))
    carried, _ = await dump._described(holder, Path("/dump"), {}, "mine")
    return carried.gid


async def test_a_partner_of_this_cluster_is_dumped() -> None:
    assert await described("mine") == 9


@pytest.mark.parametrize("cluster", ["another", None])
async def test_a_partner_that_splits_off_at_this_moment_is_not(cluster: str | None) -> None:
    """It is asked in the snapshot that is dumped: it said so before its first commit there."""
    with pytest.raises(ProgramError, match="has split off"):
        await described(cluster)
