"""A subscriber that was away until the members have trimmed what it needs of their logs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from patience import wait_until

from .localherd import LocalHerd, free_port_base, put, query, standing
from .plainpostgres import PlainPostgres, plain_postgres
from .test_recovery import keeping_little
from .test_subscriptions import caught_up, heard, must, rows, stopped


@pytest.fixture(scope="module")
def forgetful(work_directory: Path) -> Iterator[LocalHerd]:
    environment = keeping_little(work_directory)
    with standing(LocalHerd(work_directory / "trimmed", free_port_base(), environment)) as herd:
        yield herd


@pytest.fixture
def subscriber(forgetful: LocalHerd, work_directory: Path) -> Iterator[PlainPostgres]:
    port, like = free_port_base() + 90, forgetful.dsn("n1")
    with plain_postgres(work_directory / "subscriber", port, like) as server:
        yield server


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_copy_anew_begins_where_all_members_have_trimmed_what_it_has_confirmed_before(
    forgetful: LocalHerd, subscriber: PlainPostgres
) -> None:
    herd, dsn, to = forgetful, forgetful.app_dsn("n1"), subscriber.dsn(user="app")
    put(herd, dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    must(herd, "set", "create", "s", "--tables", "t")
    must(herd, "subscribe", "s", "--to", to, "--keep-bytes", "1M", "--wait")
    heard(herd, "s")
    shown = caught_up(herd, subscriber, "s")
    subscriber.stop()
    try:
        number = 0

        def trimmed() -> bool:
            nonlocal number
            for _ in range(200):
                number += 1
                query(dsn, f"INSERT INTO t VALUES ({number}, repeat(md5('{number}'), 600))")
            bases = [query(one.dsn, "SELECT pgherd.log_base()")[0][0] for one in herd.nodes()]
            return bool(min(bases) > shown)

        wait_until(trimmed, bool)
        reason = stopped(herd, "s")
    finally:
        subscriber.start()
    assert "--anew" in reason
    must(herd, "subscribe", "s", "--to", to, "--anew", "--wait")
    wait_until(partial(rows, to, "t"), lambda seen: seen == rows(dsn, "t"))
