"""Compare every replicated table and materialized view on all nodes at one and the same GID.

A marker entry is ordered in the log; each node holds a snapshot at exactly its GID, also under
load; PostgreSQL computes a checksum of each table in it. Only where those differ are the keys
looked for: buckets of the keys' hashes first, then the rows of the differing buckets. A row in
another leaf of a partitioned table is another row. Each node also compares its indexes with their
tables, where its server has amcheck.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import IndexSummary, MarkerAnswer, TableSummary
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local.node import Node, require_all_up, states_of

DIFFERENT = 1
"""Exit status when the nodes differ."""


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What the user asked for."""

    allow_missing: bool
    max_keys: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table on each compared node; None where the table does not exist."""

    name: str
    nodes: Mapping[str, TableSummary | None]

    @property
    def identical(self) -> bool:
        """All nodes have it, with the same columns and the same rows."""
        return _all_equal(self.nodes.values())


@dataclass(frozen=True, slots=True)
class TableDifference:
    """One thing that is not the same everywhere: a table, its columns, or the row of one key.

    ``versions`` has a checksum (or None: missing there) for each node.
    """

    table: str
    kind: Literal["table", "columns", "row"]
    key: str | None
    versions: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``verify``. ``differences`` is cut off after ``max_keys`` keys of a table."""

    gid: int
    skipped: tuple[str, ...]
    tables: tuple[TableComparison, ...]
    differences: tuple[TableDifference, ...]
    indexes: Mapping[str, IndexSummary]
    """Of each node, as they were some time after the GID."""

    @property
    def identical(self) -> bool:
        """No table differs, and no index from its table."""
        found = (one.faults for one in self.indexes.values())
        return all(table.identical for table in self.tables) and not any(found)


async def verify(nodes: list[Node], options: VerifyOptions) -> Comparison:
    """Compare the nodes.

    Raises:
        HerdError: a node is not up, or does not answer in time.
    """
    return await compare(*await _clients(nodes, options), options)


async def compare(
    clients: Mapping[str, AdminClient], skipped: tuple[str, ...], options: VerifyOptions
) -> Comparison:
    """Compare nodes that take writes.

    Args:
        clients: of their sidecars, by the nodes' names; at least one.
        skipped: names of those that are left out.
        options: what the user asked for.

    Raises:
        HerdError: one does not answer in time.
    """
    try:
        async with asyncio.timeout(options.timeout_s):
            return await _compare(clients, skipped, options)
    except AdminError as error:
        raise HerdError(f"verify could not be done: {error}") from error
    except TimeoutError as error:
        raise HerdError(
            f"verify took longer than {options.timeout_s:g} s: give it a longer --timeout"
        ) from error


async def _clients(
    nodes: list[Node], options: VerifyOptions
) -> tuple[dict[str, AdminClient], tuple[str, ...]]:
    nodes = [node for node in nodes if not node.member.witness]
    states = await states_of(nodes)
    missing = [state for state in states if not state.is_up]
    skipped = tuple(state.member.name for state in missing)
    if not options.allow_missing:
        require_all_up(missing)
    clients = {
        node.member.name: node.sidecar.admin for node in nodes if node.member.name not in skipped
    }
    if not clients:
        raise HerdError("no node is up: start the herd with `pgherd local up`")
    if skipped:
        progress(f"left out: {', '.join(skipped)}")
    return clients, skipped


async def _compare(
    clients: Mapping[str, AdminClient], skipped: tuple[str, ...], options: VerifyOptions
) -> Comparison:
    name, first = next(iter(clients.items()))
    marker = await _named(name, first.order_marker(clients))
    try:
        gids = await _on_each(clients, lambda node: node.wait_marker(marker.id, options.timeout_s))
        if set(gids.values()) != {marker.gid}:  # one has seen only the second copy of its order
            raise HerdError(f"the nodes hold snapshots at different GIDs ({gids}): repeat it")
        summaries = await _on_each(clients, lambda node: node.tables(marker.id, options.timeout_s))
        names = sorted({table for tables in summaries.values() for table in tables})
        tables = tuple(
            TableComparison(table, {name: summaries[name].get(table) for name in clients})
            for table in names
        )
        differences: list[TableDifference] = []
        for table in tables:
            if not table.identical:
                differences += await _differences(clients, marker, table, options)
    finally:
        await _drop(clients, marker)
    indexes = await _on_each(clients, lambda node: node.check_indexes(options.timeout_s))
    return Comparison(marker.gid, skipped, tables, tuple(differences), indexes)


async def _differences(
    clients: Mapping[str, AdminClient],
    marker: MarkerAnswer,
    table: TableComparison,
    options: VerifyOptions,
) -> list[TableDifference]:
    columns = {name: node.columns if node else None for name, node in table.nodes.items()}
    if None in columns.values():
        return [TableDifference(table.name, "table", None, columns)]
    if not _all_equal(columns.values()):
        return [TableDifference(table.name, "columns", None, columns)]
    buckets = await _on_each(
        clients, lambda node: node.buckets(marker.id, table.name, options.timeout_s)
    )
    found: list[TableDifference] = []
    for bucket in sorted({number for node in buckets.values() for number in node}):
        if not _all_equal(node.get(bucket) for node in buckets.values()):
            found += await _different_keys(clients, marker, table.name, bucket, options)
            if len(found) >= options.max_keys:
                return found[: options.max_keys]
    return found


async def _different_keys(
    clients: Mapping[str, AdminClient],
    marker: MarkerAnswer,
    table: str,
    bucket: int,
    options: VerifyOptions,
) -> list[TableDifference]:
    rows = await _on_each(
        clients, lambda node: node.keys(marker.id, table, bucket, options.timeout_s)
    )
    keys = sorted({key for node in rows.values() for key in node})
    versions = [(key, {name: node.get(key) for name, node in rows.items()}) for key in keys]
    return [
        TableDifference(table, "row", key, nodes)
        for key, nodes in versions
        if not _all_equal(nodes.values())
    ]


async def _on_each(
    clients: Mapping[str, AdminClient], call: Callable[[AdminClient], Awaitable[Answer]]
) -> dict[str, Answer]:
    answers = await asyncio.gather(*(_named(name, call(node)) for name, node in clients.items()))
    return dict(zip(clients, answers, strict=True))


async def _named(name: str, call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except AdminError as error:
        raise AdminError(f"{name}: {error}") from error


async def _drop(clients: Mapping[str, AdminClient], marker: MarkerAnswer) -> None:
    """Give the snapshots back; a node that does not hear of it gives its own back in time."""
    for client in clients.values():
        with contextlib.suppress(AdminError):
            await client.drop_marker(marker.id)


def _all_equal(values: Iterable[object]) -> bool:
    iterator = iter(values)
    first = next(iterator, None)
    return all(value == first for value in iterator)
