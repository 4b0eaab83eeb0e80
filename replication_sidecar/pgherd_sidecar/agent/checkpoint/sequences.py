"""Where this member is with its sequences, kept beside the log in case the database is lost (C12).

A copy of a partner's database knows the partner's numbers, not those that this member has given
out and that are in no row. The file is written with each checkpoint and read by a rebuild, which
adds what the old database says if that still answers.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import psycopg

from pgherd_sidecar.env.storage import durable

_FILE = "sequences.json"
_TRIES, _AGAIN_S = 20, 0.1


async def note(connection: psycopg.AsyncConnection[Any], directory: Path) -> None:
    """Write down the last number of each sequence.

    Raises:
        psycopg.Error: the server does not answer.
        OSError: it can't be written.
    """
    await _write(directory, await _positions(connection))


async def note_farther(connection: psycopg.AsyncConnection[Any], directory: Path) -> None:
    """Write down the last number of each sequence, if it is farther than what the file has.

    The database may be an older one that was put back.

    Raises:
        psycopg.Error: the server does not answer.
        OSError: it can't be written.
    """
    positions = await _positions(connection)
    rows = await connection.execute(
        "SELECT schemaname || '.' || sequencename FROM pg_sequences WHERE increment_by < 0"
    )
    descending = {name for (name,) in await rows.fetchall()}
    for name, number in load(directory).items():
        farther = min if name in descending else max
        positions[name] = farther(number, positions.get(name, number))
    await _write(directory, positions)


async def _write(directory: Path, positions: dict[str, int]) -> None:
    content = (json.dumps(positions) + "\n").encode()
    await asyncio.to_thread(durable.replace, directory, _FILE, content)


async def _positions(connection: psycopg.AsyncConnection[Any]) -> dict[str, int]:
    positions: dict[str, int] = {}
    after: int | None = 0
    while after is not None:
        after, found = await _some_positions(connection, after)
        positions |= found
    return positions


async def _some_positions(
    connection: psycopg.AsyncConnection[Any], after: int
) -> tuple[int | None, dict[str, int]]:
    """Ask the server; again where it stumbles over a sequence that is dropped meanwhile."""
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            rows = await connection.execute(
                "SELECT upto, positions FROM pgherd.sequence_positions($1)", (after,)
            )
            return await rows.fetchone() or (None, {})
        except psycopg.errors.InternalError_:
            if not tries_left:
                raise
            await asyncio.sleep(_AGAIN_S)


async def move_after_crash(connection: psycopg.AsyncConnection[Any]) -> None:
    """Have sequences go on past what a crash of the server has forgotten, if there was one.

    Raises:
        psycopg.Error: the server does not answer, or can't do it now.
    """
    after: int | None = 0
    while after is not None:
        rows = await connection.execute("SELECT pgherd.sequences_after_crash($1)", (after,))
        (after,) = await rows.fetchone() or (None,)


def load(directory: Path) -> dict[str, int]:
    """Read the file; empty if there is none."""
    try:
        positions: dict[str, int] = json.loads((directory / _FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return positions
