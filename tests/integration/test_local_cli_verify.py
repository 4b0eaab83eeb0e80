"""``pgherd local verify`` on servers that differ as a test wants; the sidecars are stand-ins."""

import json
from collections.abc import Iterator

import pytest

from .localherd import LocalHerd, error_of, query


class TestVerify:
    @pytest.fixture(autouse=True)
    def table(self, running: LocalHerd) -> Iterator[None]:
        """The same table with the same rows on both nodes, by hand: nothing replicates here."""
        for node in running.nodes():
            query(node.app_dsn, 'CREATE TABLE "Füße" (a int, t text, c float8, '
                  "PRIMARY KEY (a, t))")  # fmt: skip
            query(
                node.app_dsn,
                "INSERT INTO \"Füße\" SELECT i, 'x', i / 3.0 FROM generate_series(1, 3000) i",
            )
        yield
        for node in running.nodes():
            query(node.app_dsn, 'DROP TABLE IF EXISTS "Füße"')

    def test_of_equal_nodes_exits_with_0_and_shows_each_node(self, running: LocalHerd) -> None:
        done = running.run("verify")
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [line[:3] for line in lines[1:3]] == [
            ['public."Füße"', "n1", "3000"],
            ['public."Füße"', "n2", "3000"],
        ]
        assert lines[1][3] == lines[2][3]
        assert done.stdout.endswith("1 tables at GID 1: identical\n")

    def test_ignores_in_which_order_rows_lie_on_disk(self, running: LocalHerd) -> None:
        dsn = running.app_dsn("n2")
        query(dsn, 'UPDATE "Füße" SET c = c WHERE a % 2 = 0')
        assert running.run("verify").returncode == 0

    def test_ignores_settings_that_change_how_values_print(self, running: LocalHerd) -> None:
        dsn = running.dsn("n2")
        query(dsn, "ALTER DATABASE app SET extra_float_digits = -10")
        try:
            assert running.run("verify").returncode == 0
        finally:
            query(dsn, "ALTER DATABASE app RESET extra_float_digits")

    def test_names_table_and_key_of_a_different_row(self, running: LocalHerd) -> None:
        query(running.app_dsn("n2"), 'UPDATE "Füße" SET c = 0.5 WHERE a = 77')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße" key (77,x): differs: n1 | n2' in done.stdout

    def test_names_the_node_where_a_row_is_missing(self, running: LocalHerd) -> None:
        query(running.app_dsn("n2"), 'DELETE FROM "Füße" WHERE a = 78')
        query(running.app_dsn("n1"), 'DELETE FROM "Füße" WHERE a = 79')
        done = running.run("verify", "--json")
        assert done.returncode == 1
        answer = json.loads(done.stdout)
        assert answer["identical"] is False
        found = {(row["key"], *row["missing_on"]) for row in answer["differences"]}
        assert found == {("(78,x)", "n2"), ("(79,x)", "n1")}

    def test_sees_two_rows_that_swapped_their_values(self, running: LocalHerd) -> None:
        query(
            running.app_dsn("n2"),
            'UPDATE "Füße" t SET c = o.c FROM "Füße" o WHERE (t.a, o.a) IN ((1, 2), (2, 1))',
        )
        answer = json.loads(running.run("verify", "--json").stdout)
        assert {row["key"] for row in answer["differences"]} == {"(1,x)", "(2,x)"}

    def test_looks_into_every_partition_once(self, running: LocalHerd) -> None:
        for node in running.nodes():
            query(node.app_dsn, "CREATE TABLE parts (k int PRIMARY KEY) PARTITION BY RANGE (k)")
            query(node.app_dsn, "CREATE TABLE part PARTITION OF parts DEFAULT")
            query(node.app_dsn, "INSERT INTO parts VALUES (1), (2)")
        try:
            query(running.app_dsn("n2"), "DELETE FROM parts WHERE k = 2")
            done = running.run("verify")
            assert done.returncode == 1
            assert "public.parts key (2): missing on n2" in done.stdout
            assert "public.part " not in done.stdout
        finally:
            for node in running.nodes():
                query(node.app_dsn, "DROP TABLE parts")

    def test_names_a_table_with_other_columns(self, running: LocalHerd) -> None:
        query(running.app_dsn("n2"), 'ALTER TABLE "Füße" ADD d int')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße": columns differ: n1 | n2' in done.stdout

    def test_names_a_missing_table(self, running: LocalHerd) -> None:
        query(running.app_dsn("n2"), 'DROP TABLE "Füße"')
        done = running.run("verify")
        assert done.returncode == 1
        assert 'public."Füße": does not exist on n2' in done.stdout

    def test_lists_no_more_keys_than_asked_for(self, running: LocalHerd) -> None:
        query(running.app_dsn("n2"), 'UPDATE "Füße" SET c = -1')
        answer = json.loads(running.run("verify", "--json", "--max-keys", "7").stdout)
        assert len(answer["differences"]) == 7

    def test_needs_every_node_unless_told_otherwise(self, running: LocalHerd) -> None:
        running.must("kill", "n2", "--process", "sidecar")
        try:
            assert "not every node is up (n2 is stopped)" in error_of(running.run("verify"))
            done = running.run("verify", "--allow-missing")
            assert (done.returncode, done.stderr) == (0, "left out: n2\n")
        finally:
            running.must("start", "n2")
