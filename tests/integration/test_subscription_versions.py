"""Plain servers of all major versions that may subscribe follow a set (``make test-versions``)."""

import time
from pathlib import Path
from typing import Any

import pytest
from patience import wait_until

from .cascades import forwarding
from .installations import OTHERS, others
from .localherd import LocalHerd, free_port_base, put, query, settle
from .plainpostgres import plain_postgres
from .test_subscriptions import caught_up, must, rows, stopped

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
_OLDEST = 15
_MAJORS: list[Any] = [major for major in others() if major >= _OLDEST] or [
    pytest.param(0, marks=pytest.mark.skip(f"OTHER VERSIONS are NOT tested: {OTHERS} names none"))
]


@pytest.mark.parametrize("major", _MAJORS)
def test_a_server_of_another_version_follows(
    herd: LocalHerd, work_directory: Path, major: int
) -> None:
    name = f"v_{major}_{time.monotonic_ns():x}"
    dsn, tables = (
        herd.app_dsn("n1"),
        [f"{name}.item", f"{name}.bag", f"{name}.part", f"{name}.other"],
    )
    query(
        dsn,
        f"CREATE SCHEMA {name};"
        f" CREATE TABLE {name}.item (id int PRIMARY KEY, tags text[], at timestamptz, n numeric,"
        "  twice int GENERATED ALWAYS AS (id * 2) STORED);"
        f" CREATE TABLE {name}.bag (what text, amount float8);"
        f" CREATE TABLE {name}.part (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        f" CREATE TABLE {name}.part_1 PARTITION OF {name}.part DEFAULT;"
        f" INSERT INTO {name}.item (id, tags, at, n)"
        "  SELECT i, ARRAY[i::text, NULL], now(), i / 3.0 FROM generate_series(1, 500) i;"
        f" INSERT INTO {name}.bag VALUES ('a', 0.1), ('a', 0.1), (NULL, 'NaN');"
        f" INSERT INTO {name}.part VALUES (1), (2); CREATE TABLE {name}.other (id int PRIMARY KEY);"
        f" INSERT INTO {name}.other VALUES (1)",
    )
    settle(herd)
    port = free_port_base(1) + 1
    with plain_postgres(work_directory / f"subscriber_{major}", port, major) as server:
        to = server.dsn(user="app")
        ((number,),) = query(to, "SHOW server_version_num")
        assert int(number) // 10000 == major
        must(herd, "set", "create", name, "--tables", ",".join(tables))
        must(herd, "subscribe", name, "--to", to, "--wait")
        try:
            for table in tables:
                assert rows(to, table) == rows(dsn, table)
            query(dsn, f"UPDATE {name}.item SET id = -id, tags = NULL WHERE id % 3 = 0")
            query(dsn, f"DELETE FROM {name}.item WHERE id > 400")
            query(dsn, f"DELETE FROM {name}.bag WHERE amount < 1")
            query(dsn, f"DELETE FROM {name}.part WHERE id = 1")
            query(dsn, f"TRUNCATE {name}.other; INSERT INTO {name}.other VALUES (2)")
            query(dsn, f"ALTER TABLE {name}.item ADD COLUMN price numeric(9, 2)")
            put(herd, dsn, f"INSERT INTO {name}.item (id, price) VALUES (0, 1.5)")
            caught_up(herd, server, name)
            for table in tables:
                assert rows(to, table) == rows(dsn, table)
            query(dsn, f"ALTER TABLE {name}.item ALTER COLUMN price TYPE float8")
            assert "--anew" in stopped(herd, name)
            must(herd, "subscribe", name, "--to", to, "--anew", "--wait")
            for table in tables:
                assert rows(to, table) == rows(dsn, table)
            must(herd, "unsubscribe", name)
            query(to, f"INSERT INTO {name}.item (id) VALUES (9999)")
        finally:
            herd.top("unsubscribe", name, "--herd-only")
            herd.top("set", "drop", name)
            settle(herd)
            query(herd.dsn("n1"), f"DROP SCHEMA {name} CASCADE")


@pytest.mark.parametrize("major", _MAJORS)
def test_a_server_of_another_version_forwards(
    herd: LocalHerd, work_directory: Path, major: int
) -> None:
    """Provider and follower are two databases of it."""
    name = f"w_{major}_{time.monotonic_ns():x}"
    dsn = herd.app_dsn("n1")
    query(
        dsn,
        f"CREATE SCHEMA {name};"
        f" CREATE TABLE {name}.item (id bigserial PRIMARY KEY, tags text[], n numeric,"
        "  twice bigint GENERATED ALWAYS AS (id * 2) STORED);"
        f" CREATE TABLE {name}.bag (what text, amount float8);"
        f" INSERT INTO {name}.item (tags, n)"
        "  SELECT ARRAY[i::text, NULL], i / 3.0 FROM generate_series(1, 500) i;"
        f" INSERT INTO {name}.bag VALUES ('a', 0.1), ('a', 0.1), (NULL, 'NaN')",
    )
    settle(herd)
    port = free_port_base(1) + 1
    with plain_postgres(work_directory / f"forwarder_{major}", port, major) as server:
        query(server.dsn("postgres"), "CREATE DATABASE next OWNER app")
        here, there = server.dsn(user="app"), server.dsn("next", "app")
        must(herd, "set", "create", name, "--tables", f"{name}.*", "--sequences", f"{name}.*")
        try:
            with forwarding(work_directory, here):
                must(herd, "subscribe", name, "--to", here, "--forward", "--wait")
                by = ("--name", f"{name}_2", "--to", there, "--provider", name, "--wait")
                must(herd, "subscribe", name, *by)
                query(dsn, f"UPDATE {name}.item SET id = -id, tags = NULL WHERE id % 3 = 0")
                query(dsn, f"DELETE FROM {name}.bag WHERE amount < 1")
                query(dsn, f"ALTER TABLE {name}.item ADD COLUMN price numeric(9, 2)")
                put(herd, dsn, f"INSERT INTO {name}.item (price) VALUES (1.5)")
                caught_up(herd, server, name)
                wait_until(
                    lambda: rows(there, f"{name}.item"),
                    lambda seen: seen == rows(dsn, f"{name}.item"),
                    told=lambda: must(herd, "subscriptions"),
                )
                assert rows(there, f"{name}.bag") == rows(dsn, f"{name}.bag")
                must(herd, "unsubscribe", f"{name}_2")
                query(there, f"INSERT INTO {name}.item (id) VALUES (9999)")
        finally:
            for one in (f"{name}_2", name):
                herd.top("unsubscribe", one, "--herd-only")
            herd.top("set", "drop", name)
            settle(herd)
            query(herd.dsn("n1"), f"DROP SCHEMA {name} CASCADE")
