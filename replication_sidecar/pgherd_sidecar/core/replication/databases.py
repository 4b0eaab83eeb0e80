"""Which databases hold what was acknowledged, and whether the herd may acknowledge more.

The log holds each writeset, but only a database that could apply all that came before can apply it.
A database that can't apply an entry has *diverged*: what follows the entry is of use to those alone
that have applied it. Each member says in the log what becomes of its own database
(``DatabaseState``). When one whole database is left, and the others are not about to come back, the
herd is *held*: from that position on every writeset is refused, until there is a second one.

``Databases`` is a function of the entries it is given, and of nothing else (C17): what is
configured or read from a clock comes in the entries. A database that is merely behind, because its
member is down or cut off, is whole: it can apply what it lacks. Witnesses have none and are not
known here.

It survives a restart through ``dump`` and ``load``.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from pgherd_sidecar.core.replication.entries import (
    CAUSE_BYTES,
    STATE_ASKED,
    STATE_PAUSE,
    STATE_STOPPED,
    Condition,
    DatabaseState,
    Skip,
)

CAUSES_LIMIT: Final = 64
"""Causes remembered: part of the format, since decisions depend on it."""
SKIPPED_LIMIT: Final = 64
"""GIDs remembered that were skipped: part of the format, likewise."""
SKIPPED: Final = "skipped"
"""The cause of who has applied what was skipped."""
_WORDS: Final = CAUSE_BYTES // 8


class _Flag(IntEnum):
    """What is remembered of a database that is not whole."""

    #: it is as it was before the entry that it could not apply: it can go on without it
    STOPPED = 1
    #: the same cause came before, at another entry: another copy is expected to meet it again
    REPEATED = 2
    #: its member is configured to have an administrator decide
    PAUSE = 4


@dataclass(frozen=True, slots=True)
class Database:
    """What the log says of one database.

    Attributes:
        condition: see there.
        since: position of the entry that made it so; 0 from the beginning.
        gid: the entry that it could not apply, 0 if there is none.
        cause: why not, in a few words without values.
        flags: see ``_Flag``.
    """

    condition: Condition = Condition.WHOLE
    since: int = 0
    gid: int = 0
    cause: str = ""
    flags: int = 0

    @property
    def stopped(self) -> bool:
        """It is as it was before ``gid``."""
        return self.flags & _Flag.STOPPED != 0

    @property
    def repeated(self) -> bool:
        """The same cause came before, at another entry."""
        return self.flags & _Flag.REPEATED != 0

    @property
    def applied_skipped(self) -> bool:
        """It has applied what was skipped, as far as its member has not said otherwise."""
        stopped = self.condition in (Condition.DIVERGED, Condition.FAILED)
        return stopped and self.cause == SKIPPED

    @property
    def hopeless(self) -> bool:
        """Nothing that is under way is expected to make it whole."""
        decided = self.flags & (_Flag.REPEATED | _Flag.PAUSE)
        return self.condition is Condition.FAILED or decided != 0


@dataclass(frozen=True, slots=True)
class Hold:
    """The herd takes no writes.

    Attributes:
        since: position after which every writeset is refused.
        gid: the entry that could not be applied, 0 if none is known.
        cause: why not.
    """

    since: int
    gid: int
    cause: str


class Databases:
    """The databases of the herd at one log position.

    Invariant: ``hold`` is not None from the entry on that left fewer than two whole databases and
    one that is hopeless (or none whole), until two are whole or there is only one database.

    Args:
        members: numbers of those that have a database; all of them are whole.
    """

    __slots__ = ("_causes", "_of", "hold", "skipped")

    def __init__(self, members: Iterable[int]) -> None:
        self.hold: Hold | None = None
        #: what counts as having no effect, oldest first
        self.skipped: tuple[int, ...] = ()
        self._of = {member: Database() for member in sorted(members)}
        self._causes: list[tuple[str, int, int]] = []  # cause, GID, seconds since the epoch

    def of(self, member: int) -> Database | None:
        """What is known of a member's database; None if it has none."""
        return self._of.get(member)

    def items(self) -> list[tuple[int, Database]]:
        """All, by ascending numbers of the members."""
        return list(self._of.items())

    @property
    def whole(self) -> tuple[int, ...]:
        """Numbers of the members whose databases can apply all that was acknowledged."""
        return tuple(m for m, one in self._of.items() if one.condition is Condition.WHOLE)

    def whole_beside(self, member: int) -> bool:
        """Whether the database of some other member is whole."""
        return any(number != member for number in self.whole)

    def stopped_at(self, gid: int) -> tuple[int, ...]:
        """Numbers of the members whose databases end before ``gid``, which they can't apply."""
        return tuple(m for m, one in self._of.items() if one.stopped and one.gid == gid)

    def copy(self) -> "Databases":
        """The same as it is now, to go on apart."""
        other = Databases(())
        other.hold, other.skipped = self.hold, self.skipped
        other._of, other._causes = dict(self._of), list(self._causes)
        return other

    # ---- entries -----------------------------------------------------------------------------

    def install(self, position: int, numbers: Iterable[int]) -> None:
        """Take the members from here on; who is new is whole when it says so."""
        copying = Database(Condition.REBUILDING, position)
        self._of = {number: self._of.get(number, copying) for number in sorted(numbers)}
        self._judge(position)

    def take_state(self, position: int, entry: DatabaseState) -> None:
        """Take what a member says of a database.

        It counts if nothing has become of that database since the position that it names: a late
        copy says nothing.
        """
        known = self._of.get(entry.member)
        if known is None or known.since != entry.after:
            return
        match entry.condition:
            case Condition.WHOLE:
                now = Database(Condition.WHOLE, position)
            case Condition.DIVERGED:
                if known.applied_skipped:
                    return  # to go on behind another entry would not mend that
                now = self._diverged(position, entry)
            case Condition.REBUILDING:
                asked = entry.flags & STATE_ASKED != 0
                if self.hold is not None and not asked:
                    return  # an administrator chooses
                if known.stopped and not self.whole_beside(entry.member):
                    return  # nobody could be copied, and it could go on if that entry were skipped
                kept = 0 if asked else known.flags & ~_Flag.STOPPED
                now = self._goes_on(position, entry, known, kept)
            case Condition.FAILED:
                kept = known.flags & ~_Flag.STOPPED
                stopped = _Flag.STOPPED if entry.flags & STATE_STOPPED else 0
                now = self._goes_on(position, entry, known, kept | stopped)
        self._of[entry.member] = now
        self._judge(position)

    def skip(self, position: int, entry: Skip) -> bool:
        """Have an entry count as having no effect; False if nobody has stopped at it.

        Who has stopped at it is whole: it can go on behind it. Whoever else was whole either has
        applied it, and gets a copy of one of those, or says that it is whole when it has come by
        the entry without applying it.
        """
        stopped = self.stopped_at(entry.gid)
        if not stopped:
            return False
        self.skipped = (*self.skipped, entry.gid)[-SKIPPED_LIMIT:]
        for member, one in self._of.items():
            if member in stopped:
                self._of[member] = Database(Condition.WHOLE, position)
            elif one.condition is Condition.WHOLE:
                self._of[member] = Database(Condition.DIVERGED, position, entry.gid, SKIPPED)
        self._judge(position)
        return True

    def _diverged(self, position: int, entry: DatabaseState) -> Database:
        before = [
            gid
            for cause, gid, at_s in self._causes
            if cause == entry.cause and entry.at_s - at_s <= entry.within_s
        ]
        repeated = any(gid != entry.gid for gid in before)
        if entry.gid not in before:
            self._causes.append((entry.cause, entry.gid, entry.at_s))
            del self._causes[:-CAUSES_LIMIT]
        flags = _Flag.STOPPED | (_Flag.REPEATED if repeated else 0)
        flags |= _Flag.PAUSE if entry.flags & STATE_PAUSE else 0
        return Database(Condition.DIVERGED, position, entry.gid, entry.cause, flags)

    @staticmethod
    def _goes_on(position: int, entry: DatabaseState, known: Database, flags: int) -> Database:
        """The same trouble, unless the entry tells of another."""
        if entry.cause:
            return Database(entry.condition, position, entry.gid, entry.cause, flags)
        return replace(known, condition=entry.condition, since=position, flags=flags)

    def _judge(self, position: int) -> None:
        """Hold the herd, or release it."""
        whole = len(self.whole)
        if len(self._of) < 2 or whole > 1:
            self.hold = None
        elif self.hold is None:
            hopeless = [one for one in self._of.values() if one.hopeless]
            if whole == 0:
                hopeless = [one for one in self._of.values() if one.gid] or list(self._of.values())
            if hopeless:
                last = max(hopeless, key=lambda one: (one.gid, one.since))
                self.hold = Hold(position, last.gid, last.cause)

    # ---- checkpoints -------------------------------------------------------------------------

    def dump(self) -> "array[int]":
        """Everything as int64, for a checkpoint (equal state, equal array)."""
        hold = self.hold
        numbers = array(
            "q", [len(self._of), len(self._causes), len(self.skipped), hold is not None]
        )
        for member, one in self._of.items():
            numbers.extend((member, one.condition, one.since, one.gid, one.flags))
            numbers.extend(_words(one.cause))
        for cause, gid, at_s in self._causes:
            numbers.extend((gid, at_s, *_words(cause)))
        numbers.extend(self.skipped)
        if hold is not None:
            numbers.extend((hold.since, hold.gid, *_words(hold.cause)))
        return numbers

    @classmethod
    def load(cls, numbers: "array[int]") -> "Databases":
        """Rebuild what ``dump`` returned.

        Raises:
            ValueError: the numbers have another shape.
        """
        fields = iter(numbers)
        try:
            databases, causes, skipped, held = (next(fields) for _ in range(4))
            loaded = cls(())
            for _ in range(databases):
                member, condition, since, gid, flags = (next(fields) for _ in range(5))
                one = Database(Condition(condition), since, gid, _text(fields), flags)
                loaded._of[member] = one
            for _ in range(causes):
                gid, at_s = next(fields), next(fields)
                loaded._causes.append((_text(fields), gid, at_s))
            loaded.skipped = tuple(next(fields) for _ in range(skipped))
            if held:
                since, gid = next(fields), next(fields)
                loaded.hold = Hold(since, gid, _text(fields))
        except (StopIteration, RuntimeError) as error:  # a generator makes one of the other
            raise ValueError("databases cut off") from error
        return loaded


def _words(text: str) -> list[int]:
    content = text.encode().ljust(CAUSE_BYTES, b"\0")
    return [
        int.from_bytes(content[at : at + 8], "big", signed=True) for at in range(0, CAUSE_BYTES, 8)
    ]


def _text(fields: Iterator[int]) -> str:
    words = [next(fields).to_bytes(8, "big", signed=True) for _ in range(_WORDS)]
    return b"".join(words).rstrip(b"\0").decode()
