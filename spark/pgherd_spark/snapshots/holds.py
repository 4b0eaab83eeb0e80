"""What a member made from a snapshot needs besides rows: a certification state, and the log.

The state is that of a position before the snapshot's; the log after that position has to be there
when the snapshot has arrived, so the members can be asked to keep it. A hold ends by itself.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any

import psycopg
from pgherd_sidecar.agent.checkpoint import certstate

from pgherd_spark.reading import statements
from pgherd_spark.reading.cluster import JobError
from pgherd_spark.reading.leases import Member

_SQL = statements.load("snapshot.sql")
_ASKING_S = 60.0
_AGAIN_S = 0.5


def state_before(members: Mapping[str, Member], hold_s: float) -> bytes:
    """Return the newest checkpoint of the members' sidecars, and have all keep the log after it.

    A member that is asked may be about to trim its log up to the position of a checkpoint that it
    has written before. So all are asked first, and the checkpoint of the last position is behind
    everything that they trim. What it would rather have of the log before its own position may be
    gone: that of another member, which trims less, would be of no use if its position is.

    Args:
        members: by name; one that has no checkpoint yet makes one.
        hold_s: for how long from now on.

    Raises:
        JobError: a member is gone, or makes no checkpoint.
    """
    key = secrets.randbelow((1 << 31) - 1)
    for member in members.values():
        _hold(member, (key, 1, 0, _ASKING_S))
    newest = max((_checkpoint(member) for member in members.values()), key=_position)
    for member in members.values():
        _hold(member, (key, 0, _needed_after(newest), hold_s))
    return newest


def _position(data: bytes) -> int:
    return certstate.unpack(data).position


def _needed_after(data: bytes) -> int:
    return certstate.unpack(data).needed_base.position


def _hold(member: Member, asked: tuple[int, int, int, float]) -> None:
    with _session(member) as session:
        session.execute(_SQL["hold"], asked)


def _checkpoint(member: Member) -> bytes:
    pause = Event()
    with _session(member) as session:
        for _ in range(int(_ASKING_S / _AGAIN_S)):
            row = session.execute(_SQL["certification_state"]).fetchone()
            if row is not None and row[0] is not None:
                return bytes(row[0])
            pause.wait(_AGAIN_S)
    raise JobError(f"{member.name} makes no checkpoint: see its log")


@contextmanager
def _session(member: Member) -> Iterator[psycopg.Connection[Any]]:
    try:
        with psycopg.connect(member.trusted_conninfo, autocommit=True) as session:
            yield session
    except psycopg.Error as error:
        raise JobError(f"{member.name}: {error}") from error
