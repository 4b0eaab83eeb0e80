"""``verify`` on nodes that are Python objects: who is asked for what, and what is concluded."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import pytest
from pgherd_sidecar.cli.shared import render
from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.answers import IndexSummary, MarkerAnswer, TableSummary
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local.herd import HerdNode
from pgherd_sidecar.local.node import Node, NodeState
from pgherd_sidecar.local.operations.verify import Comparison, VerifyOptions, verify

OPTIONS = VerifyOptions(allow_missing=False, max_keys=100, timeout_s=60)
BUCKETS = 4


@dataclass
class FakeNode:
    """A node whose tables are ``{table: {key: row}}``; keys are spread over a few buckets."""

    name: str
    tables: dict[str, dict[int, str]]
    columns: str = "c"
    state_name: str = "primary"
    fails_at: str = ""
    fault: str = ""
    skipped: str = ""
    amcheck: bool = True
    gid: int = 9
    calls: list[str] = field(default_factory=list)

    @property
    def member(self) -> HerdNode:
        return HerdNode(number=1, name=self.name, port=1, peer_port=2)

    @property
    def sidecar(self) -> "FakeNode":
        return self

    @property
    def admin(self) -> "FakeAdmin":
        return FakeAdmin(self)

    async def state(self) -> NodeState:
        return NodeState(self.member, self.state_name, None, 5, 5, True, True, {})


class FakeAdmin:
    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def _called(self, what: str) -> None:
        self._node.calls.append(what)
        if what == self._node.fails_at:
            raise AdminError("broken pipe")

    async def order_marker(self, names: Iterable[str]) -> MarkerAnswer:
        self._called("order")
        return MarkerAnswer(id="m", gid=9)

    async def wait_marker(self, marker: str, _timeout_s: float) -> int:
        self._called("wait")
        assert marker == "m"
        return self._node.gid

    async def tables(self, _marker: str, _timeout_s: float) -> dict[str, TableSummary]:
        self._called("tables")
        return {
            name: TableSummary(
                rows=len(rows), checksum=repr(sorted(rows.items())), columns=self._node.columns
            )
            for name, rows in self._node.tables.items()
        }

    async def buckets(self, _marker: str, table: str, _timeout_s: float) -> dict[int, str]:
        self._called(f"buckets {table}")
        found: dict[int, str] = {}
        for key, row in sorted(self._node.tables[table].items()):
            found[key % BUCKETS] = found.get(key % BUCKETS, "") + row
        return found

    async def keys(
        self, _marker: str, table: str, bucket: int, _timeout_s: float
    ) -> dict[str, str]:
        self._called(f"keys {table} {bucket}")
        rows = self._node.tables[table]
        return {f"({key})": row for key, row in rows.items() if key % BUCKETS == bucket}

    async def drop_marker(self, _marker: str) -> None:
        self._called("drop")

    async def check_indexes(self, _timeout_s: float) -> IndexSummary:
        self._called("indexes")
        faults = {"public.i": self._node.fault} if self._node.fault else {}
        skipped = {"public.k": self._node.skipped} if self._node.skipped else {}
        return IndexSummary(available=self._node.amcheck, checked=1, faults=faults, skipped=skipped)


async def compare(*nodes: FakeNode, options: VerifyOptions = OPTIONS) -> Comparison:
    return await verify(cast(list[Node], list(nodes)), options)


def table(**changes: str) -> dict[str, dict[int, str]]:
    """Forty rows; ``k7="x"`` replaces a row, ``k7=""`` removes it."""
    rows = {key: f"row {key}" for key in range(40)}
    rows |= {int(name[1:]): row for name, row in changes.items()}
    return {"public.t": {key: row for key, row in rows.items() if row}}


async def test_equal_nodes_are_identical_without_a_look_at_keys() -> None:
    nodes = [FakeNode(name, table()) for name in ("n1", "n2", "n3")]
    result = await compare(*nodes)
    assert result.identical
    assert (result.gid, result.differences) == (9, ())
    assert [node.calls for node in nodes] == [
        ["order", "wait", "tables", "drop", "indexes"],
        ["wait", "tables", "drop", "indexes"],
        ["wait", "tables", "drop", "indexes"],
    ]


async def test_only_buckets_that_differ_are_looked_into() -> None:
    nodes = [FakeNode("n1", table()), FakeNode("n2", table(k7="changed"))]
    result = await compare(*nodes)
    assert not result.identical
    assert [(found.key, dict(found.versions)) for found in result.differences] == [
        ("(7)", {"n1": "row 7", "n2": "changed"})
    ]
    assert [call for call in nodes[1].calls if call.startswith("keys")] == ["keys public.t 3"]


async def test_a_missing_row_is_missing_in_text_and_json() -> None:
    result = await compare(
        FakeNode("n1", table()), FakeNode("n2", table(k8="")), FakeNode("n3", table(k8="odd"))
    )
    assert "public.t key (8): missing on n2, differs: n1 | n3" in render.comparison(result)
    answer = json.loads(render.comparison_json(result))
    assert answer["differences"][0]["missing_on"] == ["n2"]
    assert answer["identical"] is False


async def test_nodes_that_agree_are_shown_together() -> None:
    odd = FakeNode("n2", table(k1="odd"))
    result = await compare(FakeNode("n1", table()), odd, FakeNode("n3", table()))
    assert "public.t key (1): differs: n1=n3 | n2" in render.comparison(result)


async def test_a_missing_table_is_a_difference() -> None:
    result = await compare(FakeNode("n1", table()), FakeNode("n2", {}))
    assert "public.t: does not exist on n2" in render.comparison(result)


async def test_an_empty_table_is_not_a_missing_table() -> None:
    result = await compare(FakeNode("n1", {"t": {}}), FakeNode("n2", {"t": {}}))
    assert result.identical


async def test_other_columns_are_a_difference_though_the_rows_look_equal() -> None:
    result = await compare(FakeNode("n1", table()), FakeNode("n2", table(), columns="other"))
    assert "public.t: columns differ: n1 | n2" in render.comparison(result)


async def test_no_more_keys_are_listed_than_asked_for() -> None:
    options = VerifyOptions(allow_missing=False, max_keys=3, timeout_s=60)
    empty = FakeNode("n2", {"public.t": {}})
    result = await compare(FakeNode("n1", table()), empty, options=options)
    assert len(result.differences) == 3


async def test_a_node_that_is_not_up_is_an_error() -> None:
    with pytest.raises(HerdError, match=r"not every node is up \(n2 is recovering\)"):
        await compare(FakeNode("n1", table()), FakeNode("n2", table(), state_name="recovering"))


async def test_a_node_that_has_left_is_to_be_removed_since_it_can_t_be_started() -> None:
    with pytest.raises(
        HerdError, match=r"\(n2 is departed\): remove n2 by `pgherd local remove n2`"
    ):
        await compare(FakeNode("n1", table()), FakeNode("n2", table(), state_name="departed"))


async def test_a_node_that_is_not_up_can_be_left_out() -> None:
    options = VerifyOptions(allow_missing=True, max_keys=3, timeout_s=60)
    absent = FakeNode("n2", {}, state_name="stopped")
    result = await compare(FakeNode("n1", table()), absent, options=options)
    assert result.identical
    assert result.skipped == ("n2",)
    assert absent.calls == []


async def test_no_node_up_is_an_error_even_then() -> None:
    options = VerifyOptions(allow_missing=True, max_keys=3, timeout_s=60)
    with pytest.raises(HerdError, match="no node is up"):
        await compare(FakeNode("n1", {}, state_name="stopped"), options=options)


@pytest.mark.parametrize("step", ["wait", "tables", "buckets public.t", "keys public.t 3"])
async def test_a_node_that_fails_midway_is_an_error_and_snapshots_are_given_back(step: str) -> None:
    nodes = [FakeNode("n1", table()), FakeNode("n2", table(k7="odd"), fails_at=step)]
    with pytest.raises(HerdError, match="verify could not be done: n2: broken pipe"):
        await compare(*nodes)
    assert [node.calls[-1] for node in nodes] == ["drop", "drop"]


async def test_an_index_that_differs_from_its_table_is_a_difference() -> None:
    good = FakeNode("n1", table())
    found = await compare(good, FakeNode("n2", table(), fault="lacks a tuple", skipped="57014: x"))
    assert not found.identical
    assert found.differences == ()
    text = render.comparison(found)
    assert "n2: index public.i differs from its table: lacks a tuple" in text
    assert "n2: index public.k was not checked: 57014: x" in text
    assert text.endswith("DIFFERENT")
    said = json.loads(render.comparison_json(found))["indexes"]
    assert said["n1"]["faults"] == {}
    assert said["n2"]["faults"] == {"public.i": "lacks a tuple"}
    assert good.calls[-2:] == ["drop", "indexes"]  # no snapshot is held for them


async def test_nodes_that_cannot_check_indexes_are_named_and_differ_in_nothing() -> None:
    nodes = [FakeNode(name, table()) for name in ("n1", "n2", "n3")]
    nodes[0].amcheck = False
    found = await compare(*nodes)
    assert found.identical
    assert "indexes were not checked on n1: no amcheck there" in render.comparison(found)


async def test_snapshots_at_different_positions_are_not_compared() -> None:
    nodes = [FakeNode("n1", table()), FakeNode("n2", table(k7="later"), gid=11)]
    with pytest.raises(HerdError, match="at different GIDs"):
        await compare(*nodes)
    assert [node.calls for node in nodes] == [["order", "wait", "drop"], ["wait", "drop"]]
