"""Writes into one service for as long as it is asked to; runs in a pod of the cluster.

Each commit is one row of its own in ``ledger``. Prints one line of JSON at the end: what was
acknowledged, and the longest time without an acknowledgement. A commit whose outcome the client
did not hear is tried again under another key, as an application would: it may be there twice.

Usage: writer.py HOST WRITER, with the password in PGPASSWORD; ends at the end of its input.
"""

import json
import select
import sys
import time

import psycopg

_PAUSE_S = 0.02


def main() -> None:
    """Write until standard input ends."""
    host, writer = sys.argv[1:]
    acknowledged: list[int] = []
    errors: dict[str, int] = {}
    number, last_s, gap_s = 0, time.monotonic(), 0.0
    connection: psycopg.Connection | None = None
    while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
        number += 1
        try:
            if connection is None or connection.closed:
                connection = psycopg.connect(
                    host=host, user="app", dbname="app", autocommit=True, connect_timeout=2
                )
            connection.execute("INSERT INTO ledger VALUES (%s, %s)", (writer, number))
        except psycopg.Error as error:
            code = error.sqlstate or type(error).__name__
            errors[code] = errors.get(code, 0) + 1
            if connection is not None and error.sqlstate != "40001":
                connection.close()
            continue
        acknowledged.append(number)
        gap_s, last_s = max(gap_s, time.monotonic() - last_s), time.monotonic()
    gap_s = max(gap_s, time.monotonic() - last_s)
    json.dump({"acknowledged": acknowledged, "gap_s": gap_s, "errors": errors}, sys.stdout)


main()
