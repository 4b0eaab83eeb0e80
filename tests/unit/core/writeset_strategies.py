"""Hypothesis strategies and small builders shared by the tests of the replicated state."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st
from pgherd_sidecar.core.replication.entries import (
    Entry,
    Incarnation,
    Intention,
    Noop,
    Publish,
    Writeset,
)
from pgherd_sidecar.core.replication.merge import Statement
from pgherd_sidecar.core.replication.state import Decision, ReplicatedState

MEMBERS = (1, 2, 3)
Group = tuple[int, Sequence[int]]
"""A base GID and the certification keys that were locked under it."""


def key(value: int, mode: int) -> int:
    """A certification key: value in the upper 62 bits, lock mode in the lower two."""
    return value << 2 | mode


def groups(*pairs: Group) -> array[int]:
    """Certification keys as native integers."""
    return array("q", [n for base, keys in pairs for n in (base, len(keys), *keys)])


def texts(statement: Statement) -> list[str]:
    """The records of a statement, in bytes or not."""
    return [one.decode() if isinstance(one, bytes) else one for one in statement.records]


def wire(keys: array[int]) -> bytes:
    """Certification keys as PostgreSQL sends them."""
    copy = keys[:]
    if sys.byteorder == "little":
        copy.byteswap()
    return copy.tobytes()


def writeset(
    keys: array[int],
    *,
    member: int = 1,
    incarnation: int = 1,
    sequence: int = 1,
    low_water: int = 1,
    xid: int = 700,
) -> Writeset:
    """A writeset with empty body."""
    return Writeset(member, incarnation, sequence, low_water, xid, 0, wire(keys), b"[]")


def intention(*keys: int, member: int = 1, incarnation: int = 1, xid: int = 700) -> Intention:
    """An intention, or its withdrawal if it has no keys."""
    return Intention(member, incarnation, xid, wire(array("q", keys)))


# Few keys and values near the ends of the range: conflicts must be common, signs must not matter.
keys = st.builds(key, st.sampled_from([0, 1, 2, 3, -1, -2, 2**61 - 1, -(2**61)]), st.integers(0, 3))


@st.composite
def key_groups(draw: st.DrawFn, gid: int) -> array[int]:
    """Groups of a writeset delivered at ``gid``; bases lie before it, mostly just before it."""
    bases = st.one_of(st.integers(max(0, gid - 4), gid - 1), st.integers(0, gid - 1))
    pairs = draw(st.lists(st.tuples(bases, st.lists(keys, max_size=4)), min_size=1, max_size=3))
    return groups(*pairs)


_xids = st.integers(700, 702)


@st.composite
def logs(draw: st.DrawFn, max_size: int = 25) -> list[Entry]:
    """A log of three members: writesets with copies, restarts, publications."""
    entries: list[Entry] = []
    next_sequence = dict.fromkeys(MEMBERS, 1)
    incarnations = dict.fromkeys(MEMBERS, 1)
    for member in MEMBERS:
        entries.append(Incarnation(member, 1))
    for _ in range(draw(st.integers(0, max_size))):
        gid = len(entries) + 1
        member = draw(st.sampled_from(MEMBERS))
        match draw(st.integers(0, 10)):
            case 0:
                entries.append(Publish(member, draw(st.integers(max(0, gid - 6), gid - 1))))
            case 1:
                incarnations[member] += 1
                next_sequence[member] = 1
                entries.append(Incarnation(member, incarnations[member]))
            case 2 | 3:
                entries.append(draw(st.sampled_from(entries)))
            case 4:
                entries.append(Noop())
            case 10:
                entries.append(
                    intention(
                        *draw(st.lists(keys, max_size=3)),
                        member=member,
                        incarnation=incarnations[member],
                        xid=draw(_xids),
                    )
                )
            case _:
                sequence = next_sequence[member]
                next_sequence[member] += 1
                low_water = max(1, sequence - draw(st.integers(0, 5)))
                entries.append(
                    writeset(
                        draw(key_groups(gid)),
                        member=member,
                        incarnation=incarnations[member],
                        sequence=sequence,
                        low_water=low_water,
                        xid=draw(_xids),
                    )
                )
    return entries


def deliver_all(state: ReplicatedState, entries: Iterable[Entry], first: int = 1) -> list[Decision]:
    """Deliver entries from GID ``first`` on."""
    return [state.deliver(gid, entry) for gid, entry in enumerate(entries, first)]
