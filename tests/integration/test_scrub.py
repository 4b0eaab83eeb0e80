"""The scrub on a real herd: it compares all there is, names what differs, and alarms of no more."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from patience import wait_until

from .ledger import Ledger
from .localherd import LocalHerd, free_port_base, home, put, query, standing
from .test_capture_off import metrics as page_of
from .test_verify_herd import (
    BACK_IN_ITS_LEAF,
    GENERATED_BY_HAND,
    IN_ANOTHER_LEAF,
    SHAPES,
    UNSEEN_BY_THE_INDEX,
    write_behind_the_herd_s_back,
)


@pytest.fixture(scope="module")
def scrubbed(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of three whose passes take seconds."""
    herd = LocalHerd(work_directory / "scrubbed", free_port_base())
    with standing(herd, "--scrub-interval", "2", "--scrub-share", "50"):
        put(herd, herd.dsn("n1"), SHAPES)
        yield herd


def scrub(herd: LocalHerd, name: str = "n1") -> dict[str, Any]:
    said: dict[str, Any] = herd.member(name)["scrub"]
    return said


def found(herd: LocalHerd, name: str = "n1") -> set[tuple[str, str, str, str]]:
    """Kind, table and index, keys and members of what a member knows to differ."""
    return {
        (one["kind"], one["index"] or one["table"], *map(" ".join, (one["keys"], one["members"])))
        for one in scrub(herd, name)["differences"]
    }


def passes(herd: LocalHerd, name: str) -> float:
    return metrics(herd, name)["pgherd_scrub_passes"]


def metrics(herd: LocalHerd, name: str) -> dict[str, float]:
    text = asyncio.run(page_of(herd, name))
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {key.split("{")[0]: float(value) for key, value in lines}


def another_pass(herd: LocalHerd) -> None:
    """Wait for one that has begun after this."""
    before = passes(herd, "n1")
    wait_until(lambda: passes(herd, "n1") >= before + 2)


def logged(herd: LocalHerd, name: str, event: str) -> list[dict[str, Any]]:
    text = next(home(herd).glob(f"**/{name}/**/sidecar.log")).read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


def test_equal_members_are_compared_pass_after_pass_and_nothing_is_told(
    scrubbed: LocalHerd,
) -> None:
    another_pass(scrubbed)
    said = metrics(scrubbed, "n2")
    assert said["pgherd_scrub_rows"] >= 150
    assert said["pgherd_scrub_differences"] == said["pgherd_scrub_skipped"] == 0
    assert said["pgherd_scrub_work_s"] > 0
    assert time.time() - 600 < said["pgherd_scrub_last_pass_time_s"] < time.time() + 60
    told = scrubbed.must("status").replace("/scrubbed/", "/")  # the directory of this herd
    assert "scrub" not in told


@pytest.mark.long
def test_what_differs_is_found_named_and_forgotten_when_it_is_mended(scrubbed: LocalHerd) -> None:
    another_pass(scrubbed)  # an earlier test may have been in its way

    def have(name: str, statement: str) -> None:
        write_behind_the_herd_s_back(scrubbed, name, statement)

    have("n2", IN_ANOTHER_LEAF)
    have("n3", "UPDATE shapes.g SET v = 100 WHERE id = 5; REFRESH MATERIALIZED VIEW shapes.m;"
         " UPDATE shapes.g SET v = 5 WHERE id = 5")  # fmt: skip
    by_hand = GENERATED_BY_HAND.format("''", "UPDATE shapes.g SET d = 1000 WHERE id IN (9, 11);")
    have("n1", by_hand)
    have("n3", UNSEEN_BY_THE_INDEX.format("false"))
    put(scrubbed, scrubbed.dsn("n1"), "INSERT INTO shapes.g (id, v) VALUES (1000, 1000)")
    have("n3", UNSEEN_BY_THE_INDEX.format("true"))
    have("n2", "CREATE MATERIALIZED VIEW shapes.alone AS SELECT 1 AS id")
    wanted = {
        ("rows", "shapes.p", '["a","7"]', "n2"),
        ("rows", "shapes.m", "", "n3"),
        ("rows", "shapes.g", '["11"] ["9"]', "n1"),
        ("index", "shapes.g_v", "", "n3"),
        ("tables", "", "shapes.alone", "n2"),
    }
    wait_until(lambda: all(found(scrubbed, name) == wanted for name in ("n1", "n2", "n3")))
    said = scrubbed.must("status")
    assert "scrub: table shapes.p, key (a, 7): n2 differs from the others, at GID" in said
    assert "scrub: the tables, table shapes.alone: n2 differs from the others, at GID" in said
    assert "index shapes.g_v differs from its table shapes.g: n3: heap tuple" in said
    assert metrics(scrubbed, "n3")["pgherd_scrub_differences"] == len(wanted)
    (line,) = (
        one for one in logged(scrubbed, "n1", "scrub.different") if one["table"] == "shapes.p"
    )
    assert (line["level"], line["members"], line["keys"]) == ("error", ["n2"], 1)
    assert "7" not in line["table"] + str(line["members"])  # values of rows are not for a log

    # Another proposer knows it, too, and so does a member that has been started again.
    scrubbed.must("kill", "n1", "--process", "node")
    scrubbed.must("start", "n1")
    wait_until(lambda: found(scrubbed, "n1") == wanted)

    have("n2", BACK_IN_ITS_LEAF)
    have("n2", "DROP MATERIALIZED VIEW shapes.alone")
    have("n1", "UPDATE shapes.g SET v = v WHERE id IN (9, 11)")
    have("n3", "REFRESH MATERIALIZED VIEW shapes.m")
    have("n3", "REINDEX INDEX shapes.g_v")
    query(scrubbed.dsn("n1"), "REFRESH MATERIALIZED VIEW shapes.m")
    wait_until(lambda: not any(found(scrubbed, name) for name in ("n1", "n2", "n3")))
    assert logged(scrubbed, "n2", "scrub.mended")
    scrubbed.must("verify")


@pytest.mark.long
async def test_load_and_definitions_that_change_are_no_difference(scrubbed: LocalHerd) -> None:
    ledger = Ledger(scrubbed, "scrubload")
    await asyncio.to_thread(ledger.create)
    before = await asyncio.to_thread(passes, scrubbed, "n2")
    async with ledger.load(clients=2):
        for number in range(8):
            await asyncio.to_thread(_change, scrubbed, number)
            await ledger.commits(50)
        await asyncio.to_thread(wait_until, lambda: passes(scrubbed, "n2") >= before + 2)
    ledger.check()
    ledger.drop()
    for name in ("n1", "n2", "n3"):
        assert not found(scrubbed, name)
    assert not [
        one for one in logged(scrubbed, "n2", "scrub.different") if "scrubload" in one["table"]
    ]


def _change(herd: LocalHerd, number: int) -> None:
    """Commands that may lose to what is committed elsewhere; nothing is lost with them."""
    for command in (
        f"ALTER TABLE shapes.g ADD COLUMN c{number} int DEFAULT 1",
        "TRUNCATE shapes.p",
        "INSERT INTO shapes.p SELECT 'a', i, 'v' FROM generate_series(1, 50) i",
        f"CREATE INDEX ON shapes.g (c{number})",
        f"CREATE TABLE shapes.passing{number} (id int PRIMARY KEY)",
        f"DROP TABLE shapes.passing{number}",
    ):
        try:
            query(herd.dsn("n3"), command)
        except psycopg.errors.SerializationFailure:
            continue
        except (psycopg.errors.UndefinedColumn, psycopg.errors.UniqueViolation):
            continue
        except (psycopg.errors.UndefinedTable, psycopg.errors.DuplicateTable):
            continue


@pytest.mark.long
def test_a_member_that_is_down_is_waited_for_by_nobody_and_no_snapshot_is_left(
    scrubbed: LocalHerd,
) -> None:
    scrubbed.must("kill", "n3", "--process", "node")
    try:
        another_pass(scrubbed)
        assert scrub(scrubbed, "n1")["not_answering"] == [3]
        assert not found(scrubbed)
    finally:
        scrubbed.must("start", "n3")
    wait_until(lambda: scrub(scrubbed, "n1")["not_answering"] == [])
    another_pass(scrubbed)
    for name in ("n1", "n2", "n3"):
        ((age,),) = query(
            scrubbed.dsn(name),
            "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8"
            " FROM pg_stat_activity WHERE application_name = 'pgherd scrub'",
        )
        assert age < 40
    assert not found(scrubbed, "n3")
