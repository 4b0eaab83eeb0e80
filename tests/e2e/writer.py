"""Writes into one service for as long as it is asked to; runs in a pod of the cluster.

Each commit is one row of its own in ``ledger``. Leaves a file of JSON at the end: what was
acknowledged, and the longest time without an acknowledgement. A commit whose outcome the client
did not hear is tried again under another key, as an application would: it may be there twice.

Usage: writer.py HOST WRITER STOP OUTPUT, with the password in PGPASSWORD; ends when there is a file
STOP.
"""

import json
import sys
import time
from pathlib import Path

import psycopg

_PAUSE_S = 0.02


def main() -> None:
    """Write until told to stop."""
    host, writer, stop, output = sys.argv[1:]
    acknowledged: list[int] = []
    errors: dict[str, int] = {}
    number, last_s, gap_s = 0, time.monotonic(), 0.0
    connection: psycopg.Connection | None = None
    while not Path(stop).exists():
        time.sleep(_PAUSE_S)
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
    found = {"acknowledged": acknowledged, "gap_s": gap_s, "errors": errors}
    whole = Path(f"{output}.new")
    whole.write_text(json.dumps(found))
    whole.rename(output)


main()
