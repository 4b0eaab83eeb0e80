"""Who a member is, and who is refused: the guard against strangers, lost disks and second clusters.

A member keeps its identity beside its log for as long as the disk lives. Two members tell each
other theirs before anything else. What does not match is refused with both sides named, so that a
person can tell which of the two is wrong (C18, C21).

Pure values and functions.
"""

from dataclasses import dataclass

from pgherd_sidecar.core.consensus.model.codec import VERSION
from pgherd_sidecar.core.consensus.model.quorum import Membership


@dataclass(frozen=True, slots=True)
class Identity:
    """What one member says of itself.

    Attributes:
        cluster: identity of the cluster, given when it was founded, or split off for good.
        name: of the member.
        disk: of the disk its log is on, given when the log was made.
        certification_keys: bound of the certification state; verdicts depend on it.
        slots: by which sequences are interleaved; it stays for the life of a cluster.
        known: position of the newest membership in its log.
        member: that membership names it.
        format: of blocks, messages and entries; a member of another one can't take part.
        successor: identity of the cluster that the member has consented to become one of [S5].
    """

    cluster: str
    name: str
    disk: str
    certification_keys: int
    slots: int = 0
    known: int = 0
    member: bool = False
    format: int = VERSION
    successor: str = ""


def objection(
    mine: Identity,
    other: Identity,
    membership: Membership,
    departed: frozenset[tuple[str, str]] = frozenset(),
) -> str:
    """Say why `other` is no peer of this member; empty if it is one.

    A name that is in no membership known here may be that of a member that joined later: the log
    itself, not this guard, keeps it from voting. Who knows a newer membership than this member
    knows better who belongs to it.

    Args:
        mine: this member.
        other: what the other end says of itself.
        membership: the newest in this member's log.
        departed: name and disk of those that have left, by this member's log.
    """
    refusal = _of_another_kind(mine, other)
    if refusal or other.known > membership.position:
        return refusal
    refusal = of_another_disk(other.name, other.disk, membership)
    if refusal:
        return refusal
    if has_left(other, membership, departed):
        return f"{other.name} on disk {other.disk} has left the herd"
    return ""


def of_another_disk(name: str, disk: str, membership: Membership) -> str:
    """Say that the member of this name is on another disk; empty if it is not."""
    for member in membership.members:
        if member.name == name and not member.has_disk(disk):
            return (
                f"{name} is on disk {disk}, but the member of this name is on {member.disk}: "
                "it has to leave before the new one can join"
            )
    return ""


def has_left(
    other: Identity,
    membership: Membership,
    departed: frozenset[tuple[str, str]] = frozenset(),
) -> bool:
    """Tell whether `other` was a member and is none any more, whether or not it knows.

    Whoever was evicted while it was away takes itself for a member, by an older membership.

    Args:
        other: what the other end says of itself.
        membership: the newest in this member's log, and committed.
        departed: name and disk of those that have left, by this member's log.
    """
    if other.known > membership.position or membership.knows(other.name, other.disk):
        return False
    known_here = (other.name, other.disk) in departed
    return known_here or (other.member and other.known < membership.position)


def _same_cluster(mine: Identity, other: Identity) -> bool:
    """Tell whether both are of one cluster, or one is what the other has consented to become."""
    if mine.cluster == other.cluster:
        return True
    return mine.cluster == other.successor or other.cluster == mine.successor


def _of_another_kind(mine: Identity, other: Identity) -> str:
    if not _same_cluster(mine, other):
        return f"{other.name} is of cluster {other.cluster}, {mine.name} of {mine.cluster}"
    if other.format != mine.format:
        return f"{other.name} has format {other.format}, {mine.name} has {mine.format}"
    if other.certification_keys != mine.certification_keys:
        return (
            f"{other.name} keeps {other.certification_keys} certification keys, "
            f"{mine.name} {mine.certification_keys}"
        )
    if other.slots != mine.slots:
        return f"{other.name} has {other.slots} sequence slots, {mine.name} {mine.slots}"
    if other.name == mine.name:
        return f"{other.name} on disk {other.disk} has the name of this member on {mine.disk}"
    return ""
