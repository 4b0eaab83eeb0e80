"""Rows of the catalog keep the number of the transaction that wrote them; numbers come again."""

import os
import shutil
import subprocess

import pytest

from .installations import program
from .localherd import LocalHerd, home, put, query, settle
from .plainpostgres import as_account, major_of

_FIRST, _ROUND = 1_500_000_000, (1 << 31) + 1_000_000
"""A database may not be further behind than half a round of 2^32."""
_A_SEGMENT, _SEGMENT_BYTES = 32 * 32768, 32 * 8192
"""Transactions of a file of pg_xact, and its size."""
_DATABASES = ("postgres", "template1", "template0", "app")


def give_out(herd: LocalHerd, node: str, xid: int, major: int) -> None:
    """Have a server that does not run go on with this number, as after as many transactions."""
    data = home(herd) / node / "pgdata"

    def call(name: str, *words: str, stdin: str = "") -> None:
        command = [*as_account(), program(name, major), *words]
        subprocess.run(command, input=stdin, text=True, check=True, cwd="/")

    for database in _DATABASES:
        call("postgres", "--single", "-D", str(data), database, stdin="VACUUM FREEZE\n")
    segment = data / "pg_xact" / f"{xid // _A_SEGMENT:04X}"
    segment.write_bytes(bytes(_SEGMENT_BYTES))
    if os.geteuid() == 0:
        shutil.chown(segment, data.owner(), data.group())
    call("pg_resetwal", f"--next-transaction-id={xid}", str(data))


@pytest.mark.long
def test_what_was_made_half_a_round_of_transactions_ago_is_not_new(mortal: LocalHerd) -> None:
    query(mortal.app_dsn("n1"), "CREATE TABLE public.t (id serial PRIMARY KEY)")
    given = "INSERT INTO public.t SELECT FROM generate_series(1, 9) RETURNING id"
    before = query(mortal.app_dsn("n1"), given)
    settle(mortal)
    major = major_of(mortal.dsn("n2"))
    mortal.must("down")
    give_out(mortal, "n2", _FIRST, major)
    give_out(mortal, "n2", _ROUND, major)
    done = mortal.up()
    assert done.returncode == 0, done.stderr

    put(mortal, mortal.app_dsn("n2"), "TRUNCATE public.t")
    assert min(query(mortal.app_dsn("n1"), given)) > max(before), "it was not RESTART IDENTITY"
    new = "SELECT count(*) FROM pg_class c WHERE pgherd.is_new(c.xmin)"
    assert query(mortal.dsn("n2"), new) == [(0,)]
    assert query(mortal.dsn("n2"), f"BEGIN; CREATE TABLE public.u (); {new}") == [(1,)]
    put(mortal, mortal.app_dsn("n2"), "ALTER TABLE public.t ADD x int DEFAULT 5")
    mortal.must("verify")
