"""The systems that are compared: each starts, loads and stops itself, all durable.

Every one of them owns a directory, and all its processes name that directory in their command
lines; ``benchmarks/cpu.py`` finds them by it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.peers.base import System
from benchmarks.peers.galera import Galera
from benchmarks.peers.pgherd import Pgherd
from benchmarks.peers.pgsync import QuorumStreaming
from benchmarks.peers.plain import PlainPostgres, ThreeServers

SYSTEMS: dict[str, Callable[[Path], System]] = {
    "plain": PlainPostgres,
    "pgherd": partial(Pgherd, capture="native"),
    "pgherdsql": partial(Pgherd, capture="sql"),
    "pgsync": QuorumStreaming,
    "galera3": Galera,
    "plain3": ThreeServers,
}
"""By name, in the order in which a round runs them; made with the directory to live in."""

READERS = frozenset({"plain3"})
"""Systems whose servers do not replicate: only what they read says something."""
