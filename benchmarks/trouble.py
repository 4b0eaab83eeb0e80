"""What sidecars' logs say of a herd that is not well, read once: only what is new since last time.

A rebuild repairs a member that has diverged within seconds, so no look at its state or its rows
afterwards can tell. Its log can: ``node.needs_rebuild``, any event of a divergence,
``process.crashed``.
Called by the demo, the benchmarks and the tests. Nothing survives.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

CRASHED = "process.crashed"
_JOINS = "it joins the herd"
"""The reason of a member that has no database yet: every join begins with it."""
_DEATHS = ("Traceback (most recent call last)", "Fatal Python error")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of a log.

    Attributes:
        where: the log that says so.
        kind: the class of the cause (``DivergedError``, ...), or the event's name.
        text: what else the line says.
    """

    where: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.text}"


def troubles_in(lines: Iterable[str], where: str) -> Iterator[Trouble]:
    """Find the trouble in a log's lines."""
    for line in lines:
        if line.startswith(_DEATHS):
            yield Trouble(where, CRASHED, line.strip())
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue  # not one of our events
        if isinstance(said, dict) and (kind := _kind(said)) is not None:
            yield Trouble(where, kind, _text(said))


def _kind(said: dict[str, object]) -> str | None:
    event = str(said.get("event", ""))
    if event == "node.needs_rebuild":
        return None if said.get("reason") == _JOINS else str(said.get("kind", event))
    if event == CRASHED or "diverge" in event:
        return event
    return None


def _text(said: dict[str, object]) -> str:
    known = ("reason", "error", "text", "exception")
    return "; ".join(str(said[name]) for name in known if said.get(name)) or json.dumps(said)


@dataclass
class Logs:
    """The logs of one herd, or of several, wherever they are at the moment.

    Attributes:
        find: names the logs that are there.
    """

    find: Callable[[], Iterable[Path]]
    _read: dict[tuple[Path, int], int] = field(default_factory=dict)
    _found: list[Trouble] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> None:
        """Read what is new; call it before logs are removed."""
        with self._turn:
            for path in self.find():
                try:
                    self._found += troubles_in(self._new_lines(path), str(path))
                except FileNotFoundError:
                    continue  # removed meanwhile

    def pop(self) -> list[Trouble]:
        """Look, and return the trouble that was not returned before."""
        self.look()
        with self._turn:
            found, self._found = self._found, []
            return found

    def _new_lines(self, path: Path) -> list[str]:
        with path.open("rb") as log:
            key = (path, path.stat().st_ino)  # a node made anew begins another log
            begin = self._read.get(key, 0)
            if begin > path.stat().st_size:
                begin = 0  # truncated
            log.seek(begin)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]  # the rest is still being written
        self._read[key] = begin + len(whole)
        return whole.decode(errors="replace").splitlines()
