"""Where each recorded transaction is in the total order, as the herd itself tells afterwards."""

from collections.abc import Mapping

import psycopg
from checkers.history import Key

from workloads.recorder import Recorder

_STATUS = "SELECT pgherd.transaction_status(token) FROM unnest(%s::text[]) AS token"


async def gids_of(recorder: Recorder, dsns: Mapping[str, str]) -> dict[int, int]:
    """Ask every node for every token.

    Returns:
        The GIDs of what is committed, by transaction.

    Raises:
        AssertionError: two nodes contradict each other. Having forgotten is no contradiction.
    """
    numbers = list(recorder.tokens)
    answers: dict[int, dict[str, str]] = {number: {} for number in numbers}
    for node, dsn in dsns.items():
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            cursor = await connection.execute(_STATUS, ([recorder.tokens[n] for n in numbers],))
            for number, (answer,) in zip(numbers, await cursor.fetchall(), strict=True):
                answers[number][node] = answer
    gids = {}
    for number, told in answers.items():
        known = set(told.values()) - {"unknown"}
        assert len(known) < 2, f"T{number}, {recorder.tokens[number]}: {told}"
        if known and (answer := known.pop()) != "aborted":
            gids[number] = int(answer.removeprefix("committed "))
    return gids


async def final_rows(
    dsns: Mapping[str, str], queries: Mapping[str, str]
) -> dict[str, dict[Key, int | tuple[int, ...]]]:
    """The rows at the end on each node, lists as tuples.

    Args:
        queries: by table of the history, a query for id and value.
    """
    states = {}
    for node, dsn in dsns.items():
        rows: dict[Key, int | tuple[int, ...]] = {}
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for table, query in queries.items():
                cursor = await connection.execute(query.encode())
                for number, value in await cursor.fetchall():
                    rows[table, number] = tuple(value) if isinstance(value, list) else value
        states[node] = rows
    return states
