"""The judge of the members' answers: which difference is real, and what is asked for next."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from pgherd_sidecar.core.replication.scrub.messages import (
    Answer,
    Kind,
    Outcome,
    Purpose,
    Request,
    Subject,
)
from pgherd_sidecar.core.replication.scrub.saved import Difference, Position, Saved

TRIES = 3
"""So often a part is asked for that could not be compared."""
CONFIRMING_TRIES = 10
"""So often one in which members have differed."""
KEYS_MAX = 20
"""Keys of a difference that are told."""
DIFFERENCES_MAX = 100


class Step(msgspec.Struct, frozen=True):
    """The next question, when a scan has shown a difference."""

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


class _ScrubRound(msgspec.Struct):
    gid: int
    request: Request
    awaited: set[int]
    answers: dict[int, Answer]


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
        self._round: _ScrubRound | None = None
        self._last_id = ""
        self._tries = 0
        self._names: dict[int, str] = {}

    @property
    def is_open(self) -> bool:
        """Answers are awaited."""
        return self._round is not None

    def take_request(
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
        self._round = _ScrubRound(gid, request, set(members) - self.silent, {})
        self.silent &= set(members)
        return concluded

    def take_answer(self, answer: Answer) -> list[Conclusion]:
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

    def _same(self, asked: _ScrubRound, read: Mapping[int, Answer]) -> list[Conclusion]:
        request = asked.request
        if request.purpose is Purpose.RECHECK:
            return self._checked_again(asked, read)
        unconfirmed = request.purpose is not Purpose.SCAN
        concluded = [Conclusion("unconfirmed", asked.gid, request.scanned)] if unconfirmed else []
        self.saved.rows += max((one.rows for one in read.values()), default=0)
        return concluded + self._move(asked)

    def _unknown(
        self, asked: _ScrubRound, read: Mapping[int, Answer], missing: list[Answer]
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

    def _recheck_unknown(self, asked: _ScrubRound) -> list[Conclusion]:
        """A table that no member has any more differs nowhere."""
        absent = [one.outcome is Outcome.ABSENT for one in asked.answers.values()]
        if absent and all(absent) and asked.awaited <= asked.answers.keys():
            return self._checked_again(asked, asked.answers)
        self._note_check(asked.request)
        return []

    def _different(self, asked: _ScrubRound, read: Mapping[int, Answer]) -> list[Conclusion]:
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

    def _move(self, asked: _ScrubRound) -> list[Conclusion]:
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
        self, asked: _ScrubRound, read: Mapping[int, Answer], first_gid: int, seen_s: float
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

    def _checked_again(self, asked: _ScrubRound, read: Mapping[int, Answer]) -> list[Conclusion]:
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
