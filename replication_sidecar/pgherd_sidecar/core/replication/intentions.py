"""Intentions: whoever would lose for ever says beforehand what he is going to take.

The first committer wins (``certifier``), so a command that conflicts with every small writer loses
for as long as there are any. Before it begins, its member orders an *intention*: the certification
keys that the transaction is going to take. From that position on other writesets abort if they take
one of these keys in an incompatible mode, and the transaction that declared them finds nothing
committed above its base. This is the "intention" of a transaction that has lost often
(C14).

An intention ends with the writeset of its transaction, with a withdrawal, with a new incarnation of
its member, or with its departure. Any member may order the withdrawal, so that nobody waits for one
that has died. An earlier intention goes before a later one: two of them never block each other.

Invariants: a member has one intention at most; everything here is a function of the log, and
survives a restart in the checkpoint of ``state``.
"""

from array import array
from dataclasses import dataclass

from pgherd_sidecar.core.certification.bulk import BulkGeneration, KeyCollector
from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication.entries import Intention, Writeset, key_array


@dataclass(frozen=True, slots=True)
class Declared:
    """An intention in force.

    Attributes:
        gid: where it was ordered.
        incarnation: of its member.
        xid: the transaction's id on its member.
        keys: the certification keys, with their modes, in order.
    """

    gid: int
    incarnation: int
    xid: int
    keys: tuple[int, ...]

    def excludes(self, taken: "array[int] | KeyCollector") -> int | None:
        """The first of its keys that excludes a writeset.

        Args:
            taken: the writeset's keys: groups ``base, n, key1 .. keyn``, or collected and sorted.
        """
        if isinstance(taken, KeyCollector):
            return BulkGeneration(0, taken.keys()).conflict(self.keys)
        declared = {key >> 2: key for key in self.keys}  # of one slot the strongest, which is last
        position, end = 0, len(taken)
        while position + 1 < end:
            first = position + 2
            position = first + max(taken[position + 1], 0)
            for key in taken[first:position]:
                mine = declared.get(key >> 2)
                if mine is not None and (mine & 3) + (key & 3) >= 3:  # see certifier: a staircase
                    return mine
        return None


class Intentions:
    """The intentions in force at one position of the log, by member."""

    __slots__ = ("_declared",)

    def __init__(self) -> None:
        self._declared: dict[int, Declared] = {}

    def __bool__(self) -> bool:
        """Whether any is in force."""
        return bool(self._declared)

    def of(self, member: int) -> Declared | None:
        """The intention of a member."""
        return self._declared.get(member)

    def members(self) -> tuple[int, ...]:
        """The members that have one."""
        return tuple(self._declared)

    def take_intention(self, gid: int, entry: Intention) -> None:
        """An intention, or a withdrawal, was delivered."""
        mine = self._declared.get(entry.member)
        if entry.keys:
            keys = tuple(sorted(key_array(entry.keys)))
            self._declared[entry.member] = Declared(gid, entry.incarnation, entry.xid, keys)
        elif mine is not None and (mine.incarnation, mine.xid) == (entry.incarnation, entry.xid):
            del self._declared[entry.member]

    def against(
        self, member: int, incarnation: int, xid: int, taken: "array[int] | KeyCollector"
    ) -> tuple[int, Conflict] | None:
        """The intention that a transaction loses against, if it is decided now.

        Args:
            member: of the transaction.
            incarnation: of its member.
            xid: its id there.
            taken: its keys, as of ``Declared.excludes``.

        Returns:
            Whose intention it is, and the conflict.
        """
        if not self._declared:  # nearly always
            return None
        own = self._declared.get(member)
        if own is not None and (own.incarnation, own.xid) != (incarnation, xid):
            own = None
        for whose, other in sorted(self._declared.items(), key=lambda one: one[1].gid):
            if other is own:  # an earlier one goes before a later one
                break
            key = other.excludes(taken)
            if key is not None:
                return whose, Conflict(AbortReason.INTENDED, key, other.gid)
        return None

    def settle_writeset(
        self, writeset: Writeset, taken: "array[int] | KeyCollector"
    ) -> Conflict | None:
        """What a writeset that is decided now loses against; its own intention ends here."""
        member, incarnation, xid = writeset.member, writeset.incarnation, writeset.xid
        found = self.against(member, incarnation, xid, taken)
        own = self._declared.get(member)
        if own is not None and (own.incarnation, own.xid) == (incarnation, xid):
            del self._declared[member]
        return found[1] if found is not None else None

    def forget_member(self, member: int) -> None:
        """A member has begun anew, or has left."""
        self._declared.pop(member, None)

    def dump(self) -> "array[int]":
        """Everything as int64, for a checkpoint (equal state, equal array)."""
        numbers = array("q")
        for member in sorted(self._declared):
            one = self._declared[member]
            numbers.extend((member, one.gid, one.incarnation, one.xid, len(one.keys), *one.keys))
        return numbers

    @classmethod
    def load(cls, numbers: "array[int]") -> "Intentions":
        """Rebuild what ``dump`` returned.

        Raises:
            ValueError: the numbers have another shape.
        """
        intentions = cls()
        position = 0
        while position < len(numbers):
            member, gid, incarnation, xid, count = numbers[position : position + 5]
            position += 5 + count
            keys = tuple(numbers[position - count : position])
            if len(keys) != count:
                raise ValueError("an intention is cut off")
            intentions._declared[member] = Declared(gid, incarnation, xid, keys)
        return intentions
