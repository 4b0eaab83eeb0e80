"""What is under the processes of a herd: wires between them, clocks that jump, a disk that fills.

``FaultyHerd`` is a herd of this machine that was moved onto such machines. Clocks are
libfaketime's: a node's server and sidecar, and whatever starts them, live by the hour that a file
says. The small disk is a file system in memory under one node's directory, for which one has to be
root. What the machine can't do is left out, and ``missing`` says what.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from integration.localherd import LocalHerd, home

from faults import member
from faults.wires import Wires

_FAKETIME = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
_DISK_BYTES = 1 << 30
_BALLAST = "ballast"
_PIECE = bytes(1 << 20)


def faketime_library() -> Path | None:
    """libfaketime, where Debian's and Fedora's packages have it."""
    found = (path for pattern in _FAKETIME for path in Path("/").glob(pattern.removeprefix("/")))
    return next(found, None)


@dataclass
class FaultyHerd(LocalHerd):
    """A herd that exists, started on faulty machines; ``move_in`` once it was founded.

    Attributes:
        scripts: a directory that the servers' account can read.
        wire_base: first port of the wires.
        small: the node on the small disk, None where there can't be one.
        missing: faults that this machine can't make.
    """

    scripts: Path = Path()
    wire_base: int = 0
    small: str | None = None
    missing: list[str] = field(default_factory=list)

    def surroundings(self, words: Sequence[str]) -> dict[str, str]:
        """See ``LocalHerd``; a node is started by its own clock."""
        library = faketime_library()
        if words[:2] != ("local", "start") or library is None:
            return self.environment
        return self.environment | {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock(words[2])),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def move_in(self, seed: int) -> Wires:
        """Stop a founded herd, and start it on its machines."""
        numbers = {one["name"]: one["number"] for one in self.members()}
        self.must("down")
        script = self.scripts / "wired.py"
        shutil.copy(member.__file__, script)
        script.chmod(0o644)
        self.environment |= {
            "PGHERD_SIDECAR_SCRIPT": str(script),
            member.WIRES_VARIABLE: str(self.wire_base),
        }
        if faketime_library() is None:
            self.missing.append("clock")
        for node in numbers:
            self.set_clock(node, 0)
        self._mount(max(numbers))
        ports = {number: self.port_base + 100 + number for number in numbers.values()}
        wires = Wires(self.wire_base, ports, seed)
        with ThreadPoolExecutor(len(numbers)) as at_once:
            list(at_once.map(partial(self.must, "start"), numbers))
        return wires

    def move_out(self) -> None:
        """Destroy the herd, and what was under it."""
        self.must("down")
        if self.small is not None:
            subprocess.run(["umount", self.directory / self.small], check=True)
        self.must("destroy")

    def keep_logs(self) -> Path:
        """Copy what servers and sidecars have said; return where to."""
        kept = Path(tempfile.mkdtemp(prefix="pgherd-faults-"))
        for log in home(self).glob("*/**/*.log"):
            shutil.copy(log, kept / "-".join(log.relative_to(home(self)).parts))
        return kept

    def set_clock(self, node: str, ahead_s: int) -> None:
        """Have a node's clock jump: about a second later it is so far ahead of ours."""
        clock = self._clock(node)
        fresh = clock.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n")
        fresh.chmod(0o644)
        fresh.replace(clock)

    def fill_disk(self, left_bytes: int) -> None:
        """Leave so much of the small disk."""
        assert self.small is not None
        path = self.directory / self.small / _BALLAST
        with path.open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:  # others write meanwhile
                ballast.write(_PIECE)
        os.truncate(path, max(0, path.stat().st_size - left_bytes))

    def empty_disk(self) -> None:
        """Give the small disk its room back."""
        assert self.small is not None
        (self.directory / self.small / _BALLAST).unlink(missing_ok=True)

    def _clock(self, node: str) -> Path:
        return self.scripts / f"clock-{node}"

    def _mount(self, node: str) -> None:
        """Move a node that is down onto the small disk."""
        root = self.directory / node
        owner = root.stat()
        moved = root.rename(root.with_suffix(".moved"))
        root.mkdir(mode=0o700)
        os.chown(root, owner.st_uid, owner.st_gid)
        size = f"size={_DISK_BYTES},mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(root)]
            subprocess.run(mount, check=True, capture_output=True)
            subprocess.run(["cp", "-a", f"{moved}/.", root], check=True)
            shutil.rmtree(moved)
            self.small = node
            return
        root.rmdir()
        moved.rename(root)
        self.missing.append("disk")
