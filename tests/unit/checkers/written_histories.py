"""Histories written by hand, a line for each transaction, in the order of real time.

    1 n1/7 @3 at=2   w x 1; r y _; l z 1,2; scan t 1=5,2=6

is transaction 1 of session 7 on node n1, acknowledged, GID 3, run on a node that was at GID 2:
it wrote 1 to x, found no y, read the list z, and scanned the table t. In place of ``@3``:
``-`` wrote nothing or was never ordered, ``!`` was told aborted, ``?`` was told nothing;
``!@3`` and ``?@3`` are in the log all the same.
"""

import re

from checkers.history import (
    History,
    Key,
    Operation,
    Outcome,
    Read,
    ReadList,
    Scan,
    Transaction,
    Write,
)

_LINE = re.compile(
    r"(?P<id>\d+) (?P<node>\w+)/(?P<session>\d+) (?P<outcome>[-!?]?)(?:@(?P<gid>\d+))?"
    r"(?: at=(?P<position>\d+))? *(?P<operations>.*)"
)
_OUTCOMES = {"": Outcome.OK, "-": Outcome.OK, "!": Outcome.FAILED, "?": Outcome.UNKNOWN}


def history(text: str) -> History:
    """Read a history."""
    transactions, gids = [], {}
    for number, line in enumerate(text.strip().splitlines()):
        found = _LINE.fullmatch(line.strip())
        assert found, line
        transactions.append(
            Transaction(
                id=int(found["id"]),
                node=found["node"],
                session=int(found["session"]),
                invoked=2 * number,
                returned=2 * number + 1,
                operations=tuple(map(_operation, found["operations"].split(";"))),
                outcome=_OUTCOMES[found["outcome"]],
                position=int(found["position"]) if found["position"] else None,
            )
        )
        if found["gid"]:
            gids[int(found["id"])] = int(found["gid"])
    return History(tuple(transactions), gids)


def _operation(text: str) -> Operation:
    verb, row, *value = text.split()
    values = value[0].replace("_", "") if value else ""
    match verb:
        case "w":
            return Write(_key(row), int(values))
        case "r":
            return Read(_key(row), int(values) if values else None)
        case "l":
            return ReadList(_key(row), tuple(map(int, filter(None, values.split(",")))))
    rows = [tuple(map(int, pair.split("="))) for pair in filter(None, values.split(","))]
    return Scan(row, tuple((number, one) for number, one in rows))


def _key(row: str) -> Key:
    return row[0], int(row[1:] or 0)
