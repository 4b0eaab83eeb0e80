"""A directory in memory that behaves like a disk at a crash.

Modelled:

* The process may die between any two operations (`crash_after`).
* The power may go with it (`crash`). A write that was not synced is lost, kept or torn by sectors
  of 512 bytes. Creations, renames and removals that were not synced are kept up to a random one.
* The machine may go on (`kill`). The next process sees all that was written, synced or not.
* A flush may fail (`fail_flush`). The next process sees all that was written. The writes that did
  not reach the disk count as clean, so no later flush writes them.
* Bits of segments rot (`rot`).

Not modelled: other errors of operations, since the product stops after each of them as in a crash;
misdirected writes.
"""

from collections.abc import Callable
from random import Random

_SECTOR = 512


class PowerLoss(Exception):
    """The process died between two operations of the disk."""


class Inode:
    """Contents of one file: what is seen, what is durable, and the writes in between."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def crash(self, rng: Random) -> None:
        """Forget what is not durable."""
        self.write_back(rng)
        self.seen = bytearray(self.durable)

    def write_back(self, rng: Random) -> None:
        """Make a random part of the writes durable that were not synced, and give up the rest."""
        for offset, data in self.pending:
            fate = rng.random()
            if fate < 0.3:
                continue
            for start in range(0, len(data), _SECTOR):
                if fate < 0.6 or rng.random() < 0.5:
                    _put(self.durable, offset + start, data[start : start + _SECTOR])
        self.pending = []


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class SimDirectory:
    """The `Directory` that a simulated member keeps its log in."""

    def __init__(self) -> None:
        self._seen: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._renames: list[dict[str, Inode]] = []
        #: operations left before the process dies; None for no limit
        self.crash_after: int | None = None
        #: called before each operation with its name; may raise
        self.watch: Callable[[str], None] = lambda operation: None

    def step(self, operation: str) -> None:
        """Count an operation."""
        self.watch(operation)
        if self.crash_after is not None:
            if self.crash_after == 0:
                raise PowerLoss
            self.crash_after -= 1

    def crash(self, rng: Random) -> None:
        """Lose what was not durable."""
        self.crash_after = None
        states = [self._durable, *self._renames]
        self._durable = dict(rng.choice(states))
        self._seen = dict(self._durable)
        self._renames = []
        for inode in self._durable.values():
            inode.crash(rng)

    def kill(self) -> None:
        """Let the process die alone: what it wrote is in the cache."""
        self.crash_after = None

    def fail_flush(self, rng: Random) -> None:
        """Let the process die of a flush that failed."""
        self.kill()
        for inode in self._seen.values():
            inode.write_back(rng)

    def rot(self, rng: Random, name: str, end: int, begin: int = 8) -> None:
        """Flip a bit in these bytes of a file; by default not in the number of its format."""
        inode = self._seen[name]
        at, bit = rng.randrange(begin, min(end, len(inode.durable))), 1 << rng.randrange(8)
        inode.durable[at] ^= bit
        inode.seen[at] ^= bit

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(self._seen)

    def create(self, name: str, size: int) -> "SimFile":
        """Create or empty a file and fill it with zeros."""
        self.step("create")
        self._seen[name] = Inode()
        self._renames.append(dict(self._seen))
        file = SimFile(self, self._seen[name])
        if size:
            file.write(0, bytes(size))
        return file

    def open(self, name: str) -> "SimFile":
        """Open an existing file."""
        return SimFile(self, self._seen[name])

    def replace(self, name: str, new_name: str) -> None:
        """Rename a file."""
        self.step("rename")
        self._seen[new_name] = self._seen.pop(name)
        self._renames.append(dict(self._seen))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.step("remove")
        del self._seen[name]
        self._renames.append(dict(self._seen))

    def sync(self) -> None:
        """Make names durable."""
        self.step("flush of names")
        self._durable = dict(self._seen)
        self._renames = []


class SimFile:
    """An open file of a `SimDirectory`."""

    def __init__(self, directory: SimDirectory, inode: Inode) -> None:
        self._directory = directory
        self._inode = inode

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._inode.seen)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes."""
        return bytes(self._inode.seen[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""
        self._directory.step("write")
        _put(self._inode.seen, offset, data)
        self._inode.pending.append((offset, bytes(data)))

    def sync(self) -> None:
        """Make all writes so far durable."""
        self._directory.step("flush")
        for offset, data in self._inode.pending:
            _put(self._inode.durable, offset, data)
        self._inode.pending = []

    def close(self) -> None:
        """Release the file."""
