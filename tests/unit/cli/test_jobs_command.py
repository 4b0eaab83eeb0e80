"""Jobs on Spark are announced when there is a Spark; a check repairs only what it is sure of."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pgherd_sidecar.cli import jobs
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import herd, node
from pgherd_sidecar.local.herd import new_herd
from pgherd_sidecar.local.node import NodeState
from pgherd_sidecar.local.operations import rebuild as rebuilding
from pgherd_spark.checking.check import Sums, _majority
from pgherd_spark.checking.findings import DefinitionDifference, Findings, TableFindings
from pgherd_spark.reading import cluster
from pgherd_spark.reading.checksums import Sum
from psycopg.conninfo import conninfo_to_dict


def test_without_spark_there_is_only_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "is_installed", lambda: False)
    missing = pytest.raises(HerdError, match="scripts/setup spark")
    with missing, jobs._errors(), jobs._spark("pgherd check", 1):
        pass
    assert not capsys.readouterr().err


def findings(
    *buckets: Sums,
    definitions: tuple[DefinitionDifference, ...] = (),
    unread_on: Mapping[str, Mapping[str, str]] | None = None,
) -> Findings:
    """Of one table on three nodes, some buckets of which differ. No row is named."""
    nodes = ["n1", "n2", "n3"]
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    table = TableFindings(
        "public.t", {}, 16, len(buckets), 101, True, None, **_majority(nodes, buckets)
    )
    members = dict.fromkeys(nodes, "1:2:")
    return Findings(
        7, moment, moment, members, {}, (table,), (), definitions, (), (), unread_on or {}
    )


def rebuilt(monkeypatch: pytest.MonkeyPatch, found: Findings) -> list[tuple[str, str | None]]:
    """Which nodes are replaced by a copy of which."""
    done = []

    async def rebuild(_: Path, name: str, asked: rebuilding.RebuildOptions) -> None:
        done.append((name, asked.partner))

    monkeypatch.setattr(rebuilding, "rebuild", rebuild)
    jobs._repair(Path(), found)
    return done


_RIGHT, _WRONG = Sum(1, 1, 1), Sum(1, 2, 2)


def test_what_a_majority_contradicts_is_repaired_though_its_rows_are_too_many_to_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket: Sums = {"n1": _WRONG, "n2": _RIGHT, "n3": _RIGHT}
    assert rebuilt(monkeypatch, findings(bucket, bucket)) == [("n1", "n2")]


def test_a_node_that_is_wrong_in_a_row_that_is_not_named_is_no_partner_of_a_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second: Sums = {"n1": _RIGHT, "n2": _WRONG, "n3": _RIGHT}
    first: Sums = {"n1": _WRONG, "n2": _RIGHT, "n3": _RIGHT}
    with pytest.raises(HerdError, match="no majority of them agrees"):
        rebuilt(monkeypatch, findings(first, second))


def test_nothing_is_repaired_where_nobody_knows_who_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd: Sums = {"n1": _WRONG, "n2": _RIGHT, "n3": _RIGHT}
    contested: Sums = {"n1": _WRONG, "n2": _RIGHT, "n3": Sum(1, 3, 3)}
    with pytest.raises(HerdError, match=r"nobody knows who has public\.t right"):
        rebuilt(monkeypatch, findings(odd, contested))


def test_what_the_odd_one_could_not_read_is_no_obstacle_to_its_repair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket: Sums = {"n1": _RIGHT, "n2": _RIGHT, "n3": _WRONG}
    locked = {"index public.i": "it was locked"}
    assert rebuilt(monkeypatch, findings(bucket, unread_on={"n3": locked})) == [("n3", "n1")]
    with pytest.raises(
        HerdError, match=r"nobody knows who has index public\.i on n2: it was locked"
    ):
        rebuilt(monkeypatch, findings(bucket, unread_on={"n2": locked, "n3": locked}))


def test_rows_of_a_table_that_the_odd_one_defines_otherwise_say_nothing_of_the_partner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has compared them, so those of the partner may be wrong."""
    texts = {"n1": "id integer, v text", "n2": "id integer", "n3": "id integer"}
    other = DefinitionDifference("table", "public.u", texts, ("n1",))
    assert rebuilt(monkeypatch, findings(definitions=(other,))) == [("n1", "n2")]


def test_no_database_is_replaced_for_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"n1": None, "n2": "", "n3": ""}
    roles = tuple(
        DefinitionDifference(kind, "r", texts, odd)
        for kind, odd in (("role", ("n1",)), ("membership", ()))
    )
    with pytest.raises(HerdError, match="nothing but roles differs"):
        rebuilt(monkeypatch, findings(definitions=roles))
    bucket: Sums = {"n1": _RIGHT, "n2": _RIGHT, "n3": _WRONG}
    assert rebuilt(monkeypatch, findings(bucket, definitions=roles)) == [("n3", "n1")]


def test_a_herds_directory_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = new_herd(
        tmp_path / "Ann's herd", nodes=1, port_base=30000, postgres_bin=Path("/usr/bin")
    )
    (member,) = description.members
    up = NodeState(member, "primary", None, 1, 1, True, True, {})

    async def states_of(_: object) -> list[NodeState]:
        return [up]

    monkeypatch.setattr(herd, "load", lambda _: description)
    monkeypatch.setattr(node, "states_of", states_of)
    members, _ = jobs._members(tmp_path, allow_missing=False)
    passfile = conninfo_to_dict(members["n1"].conninfo)["passfile"]
    assert passfile == str(description.node(member).passfile)
