"""The scrub: which part of the tables is compared next, and what the members' answers mean.

A *request* in the log asks all members for checksums of one part of the tables as they are at its
position; each *answer* comes through the log, too, so every member draws the same conclusions. The
proposer orders requests, one at a time. A part in which members differ is asked for again, at a
later position: first row by row where that can be, then the rows that differ by their keys. What
still differs then is a `Difference`, and it is asked for from time to time until it is gone.

A *pass* is once through all tables. Nobody has to answer: who is down, busy, or has no such table
any more is left out. A part that fewer than two members can read is tried again, then skipped.
While fewer than two answer at all it waits.

A request and an answer travel as a marker that is addressed to no member, which a member of an
earlier version ignores. This module does no IO and knows no clock. What a ledger knows may be kept
and lost: it is where to go on, and what has been found.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from pgherd_sidecar.core.entries import Marker

ADDRESS = "pgherd scrub"
"""In place of the name of a member."""
TRIES = 3
"""So often a part is asked for that could not be compared."""
CONFIRMING_TRIES = 10
"""So often one in which members have differed."""
KEYS_MAX = 20
"""Keys of a difference that are told."""
DIFFERENCES_MAX = 100
_RECHECK_S = 300.0
_LEAST_REST_S = 0.02
_PART_S = 0.1
_ROWS_MIN = 50
ROWS_MAX = 5_000
"""Of a part; fewer where they take longer than a fraction of a second."""
_FULL = 100


class Kind(StrEnum):
    """What a subject consists of."""

    NAMES = "names"
    """All tables and their columns."""
    RANGE = "range"
    """The rows of a range of keys, as one sum; all rows without a key."""
    KEYS = "keys"
    """The same row by row."""
    ROWS = "rows"
    """Some rows by their keys."""
    INDEX = "index"
    """An index against its table; each member compares its own."""


class Purpose(StrEnum):
    """Why it is asked for."""

    SCAN = "scan"
    LIST = "list"
    CONFIRM = "confirm"
    RECHECK = "recheck"


class Outcome(StrEnum):
    """How it went on one member."""

    READ = "read"
    ABSENT = "absent"
    CHANGED = "changed"
    BUSY = "busy"
    FAILED = "failed"


Key = tuple[str, ...]


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the tables.

    Attributes:
        table: its name.
        after, until: keys; the first is outside. None is before, or behind, all of them.
        keys: of rows, as JSON.
        index: its name.
    """

    kind: Kind
    table: str = ""
    after: Key | None = None
    until: Key | None = None
    keys: tuple[str, ...] = ()
    index: str = ""


class Request(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Asks for a part.

    Attributes:
        id: unique.
        number: of the pass.
        began_s, ends_s: of the pass, on the clock of who asks: when it began, and is to be over.
        at_s: when it is asked for, likewise.
        ranged: the rows of the subject can be told by key.
        scanned: the part of the pass that this belongs to; None for a recheck.
    """

    id: str
    purpose: Purpose
    subject: Subject
    number: int
    began_s: float
    ends_s: float
    at_s: float
    ranged: bool = False
    scanned: Subject | None = None


class Answer(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What one member found.

    Attributes:
        id: of the request.
        found: checksums, by key where rows are told one by one; of an index, what is wrong.
        rows: how many were read.
        work_s: how long a session of the member's server worked.
        note: why it failed.
    """

    id: str
    member: int
    name: str
    outcome: Outcome
    found: dict[str, str] = {}
    rows: int = 0
    work_s: float = 0.0
    note: str = ""


class Position(msgspec.Struct, frozen=True):
    """How far a pass is.

    Attributes:
        table: the one that it is at, "" before the first.
        after: rows up to here are done.
        index: all rows are done, and indexes up to this one; None while rows are left.
    """

    table: str = ""
    after: Key | None = None
    index: str | None = None

    def behind(self, scanned: Subject) -> "Position | None":
        """The position when this is done, too; None behind the last part of a pass."""
        match scanned.kind:
            case Kind.NAMES:
                return None
            case Kind.INDEX:
                return Position(scanned.table, None, scanned.index)
            case _ if scanned.until is None:
                return Position(scanned.table, None, "")
            case _:
                return Position(scanned.table, scanned.until)


class Difference(msgspec.Struct):
    """A part that members have been found to differ in twice.

    Attributes:
        gid: the position of the last request that showed it.
        first_gid: that of the first one.
        members: names of those whom a majority contradicts; of all where there is no majority.
        majority: there is one.
        keys: as JSON, some of them, each with the members that it concerns.
        more: how many other keys there are at least.
        text: what is wrong with an index.
        seen_s, checked_s: when it was found, and last asked for, on the clock of who asked.
    """

    subject: Subject
    gid: int
    first_gid: int
    members: tuple[str, ...]
    majority: bool
    keys: dict[str, tuple[str, ...]]
    more: int
    text: str
    seen_s: float
    checked_s: float


class Saved(msgspec.Struct):
    """What is worth keeping: see `Ledger`."""

    number: int = 1
    began_s: float = 0.0
    last_s: float = 0.0
    position: Position = Position()
    passes: int = 0
    finished_s: float = 0.0
    rows: int = 0
    skipped: int = 0
    differences: list[Difference] = []


class Step(msgspec.Struct, frozen=True):
    """What is to be asked for next, when a scan has shown a difference."""

    purpose: Purpose
    subject: Subject
    scanned: Subject


class Conclusion(msgspec.Struct, frozen=True):
    """Something to tell of.

    Attributes:
        what: "different", "mended", "unconfirmed", "skipped" or "passed".
    """

    what: str
    gid: int
    subject: Subject | None = None
    difference: Difference | None = None
    note: str = ""


class _Round(msgspec.Struct):
    gid: int
    request: Request
    awaited: set[int]
    answers: dict[int, Answer]


def encode(message: Request | Answer, identity: bytes) -> Marker:
    """Put a message into a marker; ``identity`` is its 16 bytes."""
    return Marker(identity, (ADDRESS, msgspec.json.encode(message).decode()))


def decode(marker: Marker) -> Request | Answer | None:
    """Take a message out of a marker; None if there is none that this version understands."""
    if len(marker.names) != 2 or marker.names[0] != ADDRESS:
        return None
    try:
        message: Request | Answer = _DECODER.decode(marker.names[1])
    except msgspec.DecodeError:
        return None
    return message


class Ledger:
    """Follows requests and answers through the log.

    Invariants: one request is open at a time, the newest; a position moves only behind parts that
    were compared or skipped.

    Attributes:
        saved: what a restart goes on from.
        step: what a difference needs next.
        work_s: how long the member worked that worked longest for the last request.
        rechecked: the last request was a recheck; a scan has the next turn if one is due.
        silent: numbers of members that have not answered a request and are not waited for.
    """

    def __init__(self, saved: Saved) -> None:
        self.saved = saved
        self.step: Step | None = None
        self.work_s = 0.0
        self.rechecked = False
        self.silent: set[int] = set()
        self._round: _Round | None = None
        self._last_id = ""
        self._tries = 0
        self._names: dict[int, str] = {}

    @property
    def is_open(self) -> bool:
        """Answers are awaited."""
        return self._round is not None

    def request(
        self, gid: int, request: Request, members: Collection[int]
    ) -> list[Conclusion] | None:
        """Take a request at its position; None for a copy of one that was taken before."""
        if request.id == self._last_id:
            return None
        concluded = self.close()
        self._last_id = request.id
        saved = self.saved
        if request.number >= saved.number:
            saved.number, saved.began_s = request.number, request.began_s
        self.rechecked = request.purpose is Purpose.RECHECK
        if not self.rechecked:
            saved.last_s = request.at_s
        self._round = _Round(gid, request, set(members) - self.silent, {})
        self.silent &= set(members)
        return concluded

    def answer(self, answer: Answer) -> list[Conclusion]:
        """Take an answer."""
        self.silent.discard(answer.member)
        self._names[answer.member] = answer.name
        asked = self._round
        if asked is None or answer.id != asked.request.id:
            return []
        asked.answers.setdefault(answer.member, answer)
        return self.close() if asked.awaited <= asked.answers.keys() else []

    def close(self) -> list[Conclusion]:
        """Conclude from the answers that there are, and await no others."""
        asked, self._round = self._round, None
        if asked is None:
            return []
        self.silent |= asked.awaited - asked.answers.keys()
        self.work_s = max((one.work_s for one in asked.answers.values()), default=0.0)
        read = {n: one for n, one in asked.answers.items() if one.outcome is Outcome.READ}
        comparable = read if len(read) > 1 or asked.request.subject.kind is Kind.INDEX else {}
        if comparable and _differ(asked.request.subject, comparable.values()):
            return self._different(asked, comparable)
        missing = [one for one in asked.answers.values() if one.outcome is not Outcome.READ]
        if comparable and not any(one.outcome is not Outcome.ABSENT for one in missing):
            return self._same(asked, comparable)
        return self._unknown(asked, comparable, missing)

    def _same(self, asked: _Round, read: Mapping[int, Answer]) -> list[Conclusion]:
        request = asked.request
        if request.purpose is Purpose.RECHECK:
            return self._checked_again(asked, read)
        unconfirmed = request.purpose is not Purpose.SCAN
        concluded = [Conclusion("unconfirmed", asked.gid, request.scanned)] if unconfirmed else []
        self.saved.rows += max((one.rows for one in read.values()), default=0)
        return concluded + self._move(asked)

    def _unknown(
        self, asked: _Round, read: Mapping[int, Answer], missing: list[Answer]
    ) -> list[Conclusion]:
        """Try again, or go on without those that could not answer."""
        request = asked.request
        if request.purpose is Purpose.RECHECK:
            return self._recheck_unknown(asked)
        if len(asked.answers) <= 1:
            return []  # nobody else is there: the part waits for them
        self._tries += 1
        if self._tries < (CONFIRMING_TRIES if request.purpose is Purpose.CONFIRM else TRIES):
            return []
        if request.purpose is Purpose.LIST and request.scanned is not None:
            self._tries = 0
            self.step = Step(Purpose.CONFIRM, request.scanned, request.scanned)
            return []
        if read and request.purpose is Purpose.SCAN:
            return self._same(asked, read)
        self.saved.skipped += 1
        notes = {f"{one.name}: {one.outcome} {one.note}".strip() for one in missing}
        note = "; ".join(sorted(notes)) or "fewer than two members answer"
        return [Conclusion("skipped", asked.gid, request.subject, note=note), *self._move(asked)]

    def _recheck_unknown(self, asked: _Round) -> list[Conclusion]:
        """A table that no member has any more differs nowhere."""
        absent = [one.outcome is Outcome.ABSENT for one in asked.answers.values()]
        if absent and all(absent) and asked.awaited <= asked.answers.keys():
            return self._checked_again(asked, asked.answers)
        self._note_check(asked.request)
        return []

    def _different(self, asked: _Round, read: Mapping[int, Answer]) -> list[Conclusion]:
        request = asked.request
        subject, scanned = request.subject, request.scanned
        if request.purpose is Purpose.RECHECK:
            known = self._known(subject)
            if known is not None:
                self._replace(known, self._made(asked, read, known.first_gid, known.seen_s))
            return []
        self._tries = 0
        if scanned is None:
            return []
        if request.purpose is Purpose.SCAN and request.ranged:
            rows = msgspec.structs.replace(scanned, kind=Kind.KEYS)
            self.step = Step(Purpose.LIST, rows, scanned)
        elif request.purpose is Purpose.SCAN:
            self.step = Step(Purpose.CONFIRM, scanned, scanned)
        elif request.purpose is Purpose.LIST:
            keys = tuple(sorted(_differing(read.values()))[:KEYS_MAX])
            rows = Subject(Kind.ROWS, scanned.table, keys=keys)
            self.step = Step(Purpose.CONFIRM, rows, scanned)
        else:
            found = self._made(asked, read, asked.gid, request.at_s)
            known = self._known(subject)
            concluded = [] if known else [Conclusion("different", asked.gid, subject, found)]
            self._replace(known, found)
            self.saved.rows += max((one.rows for one in read.values()), default=0)
            return concluded + self._move(asked)
        return []

    def _move(self, asked: _Round) -> list[Conclusion]:
        """The part is done."""
        self._tries, self.step = 0, None
        scanned = asked.request.scanned
        if scanned is None or asked.request.number < self.saved.number:
            return []
        behind = self.saved.position.behind(scanned)
        self.saved.position = behind or Position()
        if behind is not None:
            return []
        saved, request = self.saved, asked.request
        saved.passes += 1
        saved.finished_s = request.at_s
        saved.number = request.number + 1
        saved.began_s = saved.last_s = max(request.at_s, request.ends_s)
        return [Conclusion("passed", asked.gid)]

    def _made(
        self, asked: _Round, read: Mapping[int, Answer], first_gid: int, seen_s: float
    ) -> Difference:
        subject, at_s = asked.request.subject, asked.request.at_s
        if subject.kind is Kind.INDEX:
            bad = [one for one in read.values() if one.found]
            names, majority = {one.name for one in bad}, True
            keys: dict[str, tuple[str, ...]] = {}
            text, more = "; ".join(f"{one.name}: {one.found['']}" for one in bad), 0
        else:
            concerned = {
                key: blamed({one.name: one.found.get(key) for one in read.values()})
                for key in sorted(_differing(read.values()))
            }
            names = {name for found, _ in concerned.values() for name in found}
            majority = all(known for _, known in concerned.values())
            told = list(concerned.items())[:KEYS_MAX]
            keys = {key: found for key, (found, _) in told if key}
            text, more = "", len(concerned) - len(told)
        return Difference(
            subject=subject,
            gid=asked.gid,
            first_gid=first_gid,
            members=tuple(sorted(names)),
            majority=majority,
            keys=keys,
            more=more,
            text=text,
            seen_s=seen_s,
            checked_s=at_s,
        )

    def _checked_again(self, asked: _Round, read: Mapping[int, Answer]) -> list[Conclusion]:
        """It is gone if all that it was about agree now, or are members no more."""
        known = self._known(asked.request.subject)
        if known is None:
            return []
        self._note_check(asked.request)
        heard = {one.name for one in read.values()}
        left = {self._names[number] for number in asked.awaited if number in self._names}
        if not set(known.members) & left <= heard:
            return []
        self.saved.differences.remove(known)
        return [Conclusion("mended", asked.gid, known.subject, known)]

    def _note_check(self, request: Request) -> None:
        known = self._known(request.subject)
        if known is not None:
            known.checked_s = request.at_s

    def _known(self, subject: Subject) -> Difference | None:
        return next((one for one in self.saved.differences if one.subject == subject), None)

    def _replace(self, known: Difference | None, found: Difference) -> None:
        if known is not None:
            self.saved.differences[self.saved.differences.index(known)] = found
        elif len(self.saved.differences) < DIFFERENCES_MAX:
            self.saved.differences.append(found)


def _differ(subject: Subject, read: Iterable[Answer]) -> bool:
    if subject.kind is Kind.INDEX:
        return any(one.found for one in read)
    return bool(_differing(read))


def _differing(read: Iterable[Answer]) -> set[str]:
    """Keys under which not all have the same."""
    found = [one.found for one in read]
    keys = {key for one in found for key in one}
    return {key for key in keys if len({one.get(key) for one in found}) > 1}


def blamed(versions: Mapping[str, str | None]) -> tuple[tuple[str, ...], bool]:
    """Return whom a majority contradicts, and True; all, and False, where there is none."""
    counts: dict[str | None, int] = {}
    for version in versions.values():
        counts[version] = counts.get(version, 0) + 1
    most = max(counts, key=lambda version: counts[version])
    if 2 * counts[most] > len(versions):
        return tuple(sorted(n for n, version in versions.items() if version != most)), True
    return tuple(sorted(versions)), False


def rest_s(work_s: float, share: float) -> float:
    """How long to rest after work of so many seconds, to work for ``share`` percent of the time."""
    return max(_LEAST_REST_S, work_s * (_FULL / share - 1))


def due_s(saved: Saved, interval_s: float, parts_left: int, least_s: float) -> float:
    """When the next part of the pass is due, so that they are spread over what is left of it.

    Args:
        saved: where it stands.
        interval_s: what a pass is to take.
        parts_left: how many parts are left, about.
        least_s: rest after the last part.
    """
    left_s = saved.began_s + interval_s - saved.last_s
    return saved.last_s + max(least_s, left_s / max(1, parts_left))


def recheck_due(saved: Saved, interval_s: float, now_s: float) -> Difference | None:
    """The difference that has not been looked at for longest, if it is time to."""
    oldest = min(saved.differences, key=lambda one: one.checked_s, default=None)
    pause_s = max(1.0, min(_RECHECK_S, interval_s / 10))
    return oldest if oldest is not None and now_s >= oldest.checked_s + pause_s else None


def parts_left(extent: Iterable[tuple[str, float, int]], position: Position, rows: int) -> int:
    """How many parts are left of a pass, the list of tables among them.

    Args:
        extent: tables from where the pass is on: name, rows, indexes, all about.
        position: where it is.
        rows: of a part.
    """
    count = 1
    for name, size, indexes in extent:
        if name != position.table or position.index is None:
            count += max(1, -int(-size // rows)) + indexes
    return count


def rows_next(rows: int, work_s: float) -> int:
    """How many rows the next part is to have, when one of so many took so long."""
    wanted = rows * _PART_S / max(work_s, _PART_S / 2)
    return max(_ROWS_MIN, min(ROWS_MAX, int(wanted)))


def first_behind(names: Iterable[str], last: str) -> str | None:
    """The first name behind another; None if there is none."""
    return min((name for name in names if name > last), default=None)


def summary(saved: Saved) -> list[dict[str, Any]]:
    """The differences as plain values."""
    found: list[dict[str, Any]] = []
    for one in saved.differences:
        subject = one.subject
        found.append(
            {
                "kind": {Kind.NAMES: "tables", Kind.INDEX: "index"}.get(subject.kind, "rows"),
                "table": subject.table,
                "index": subject.index,
                "keys": {key: list(members) for key, members in one.keys.items()},
                "more_keys": one.more,
                "members": list(one.members),
                "majority": one.majority,
                "gid": one.gid,
                "first_gid": one.first_gid,
                "text": one.text,
            }
        )
    return found


_DECODER = msgspec.json.Decoder(Request | Answer)
