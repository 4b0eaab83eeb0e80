"""The log's memberships, as the sidecar reads them: who is where, and what this member asks for.

To the log a member is a name, a disk and a vote, and an opaque ``info``. Here is what is in it: a
``Contact``. The log alone decides who is a member; the configuration founds a herd, and tells whom
to ask at first.

Pure functions of memberships and configurations.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec
from pydantic import ValidationError

from pgherd_sidecar.agent.base.config import MemberAddress, NodeConfig, PostgresAddress
from pgherd_sidecar.agent.base.defaults import SERVICES
from pgherd_sidecar.core.consensus import Member, Membership
from pgherd_sidecar.core.consensus.model.identity import of_another_disk
from pgherd_sidecar.env.network.connections import Peer

_IN_KUBERNETES: Final = re.compile(r"([^.]+)\.([^.]+\.[^.]+\.svc)")
"""The host of a pod behind a headless service: which pod, and the service in its namespace."""
_INFO_BYTES: Final = 2048
"""A membership is in each vote and at the head of each segment: it must stay small."""


class Contact(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a member's ``info``.

    Attributes:
        number: of the member; interleaves sequences, and names it in entries.
        host, port: where its peer port is.
        postgres_host, postgres_port: where its server can be copied; empty if it can't.
    """

    number: int
    host: str
    port: int
    postgres_host: str = ""
    postgres_port: int = 0

    def encode(self) -> str:
        """Return the info; equal contacts, equal texts."""
        return msgspec.json.encode(self).decode()


class NoContactError(ValueError):
    """A membership names a member without saying what it has to say of it."""


def contact(member: Member) -> Contact:
    """Return what is said of a member.

    Raises:
        NoContactError: nothing that this version understands.
    """
    try:
        return msgspec.json.decode(member.info, type=Contact)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NoContactError(f"nothing is known of member {member.name}: {error}") from error


def at_home(config: NodeConfig, host: str) -> str:
    """Return where this member looks for another one that the log has at this host.

    On Kubernetes a herd is in one namespace. A log that was copied into another one, with the
    volumes, tells of the members that it was copied from. Those are never dialled: a copy that
    met them would pass for one of them.
    """
    mine, other = (_IN_KUBERNETES.fullmatch(one) for one in (config.address.host, host))
    return host if mine is None or other is None else f"{other[1]}.{mine[2]}"


def founding(config: NodeConfig) -> Membership:
    """Return the first membership of a cluster; the same on each of its founders.

    Their disks are not known yet, nor their servers: each of them tells (``wish``).
    """
    if not config.founder:
        return Membership()
    return Membership.founded(
        Member(
            one.name,
            witness=one.witness,
            info=Contact(one.number, one.host, one.port).encode(),
        )
        for one in config.members
    )


def myself(config: NodeConfig, disk: str, since: int = 0) -> Member:
    """Return this member as its configuration and its disk make it."""
    address, server = config.address, config.postgres
    copied_at = (server.tcp_host, server.port) if server.tcp_host else ("", 0)
    found = Contact(config.number, address.host, address.port, *copied_at)
    return Member(
        config.name, disk, since, witness=config.witness, info=found.encode(), reader=config.reader
    )


def names(membership: Membership, name: str, disk: str) -> bool:
    """Tell whether a membership has a member on this very disk: one not known yet is none."""
    return any((member.name, member.disk) == (name, disk) for member in membership.members)


def departed(memberships: Iterable[Membership]) -> frozenset[tuple[str, str]]:
    """Return name and disk of those that were members and are none in the newest membership."""
    known, newest = set(), Membership()
    for newest in memberships:
        known |= {(member.name, member.disk) for member in newest.members if member.disk}
    present = newest.members
    return frozenset(
        (name, disk)
        for name, disk in known
        if not any(member.name == name and member.has_disk(disk) for member in present)
    )


def wish(config: NodeConfig, disk: str, membership: Membership) -> Member | None:
    """Return what a member has to ask for until the log says so; None if all is well."""
    me = myself(config, disk)
    known = next((member for member in membership.members if member.name == me.name), None)
    if known is None or (known.disk, known.info) != (me.disk, me.info):
        return me
    return me if known.reader and not me.reader else None


def reads_only(config: NodeConfig, membership: Membership) -> bool:
    """Tell whether this member is a reader: as the log says, or as it is to ask for."""
    for member in membership.members:
        if member.name == config.name:
            return member.reader
    return config.reader


def peers(
    config: NodeConfig, membership: Membership, gone: frozenset[tuple[str, str]]
) -> list[Peer]:
    """Return whom to dial: the members, and whom the configuration names and who has not left.

    Of whom both tell an address the configuration's counts: addresses may have changed while
    nothing could be ordered.
    """
    left = {name for name, _ in gone} - set(membership.names)
    found: dict[str, Peer] = {}
    for member in membership.members:
        at = contact(member)
        found[member.name] = Peer(member.name, at.number, at_home(config, at.host), at.port)
    for one in config.members:
        if one.name not in left:
            found[one.name] = Peer(one.name, one.number, one.host, one.port)
    found.pop(config.name, None)
    return list(found.values())


def numbers(membership: Membership) -> tuple[int, ...]:
    """Return the numbers of those members that have a database, each once, sorted.

    Two members of one number are never let in. Should they be, no member may stop at this entry.
    """
    return tuple(sorted({contact(m).number for m in membership.members if not m.witness}))


def reserved(name: str) -> str:
    """Say that no member can have a name, whose certificate is in other hands; empty if one can."""
    return f"no member can be called {name}" if name in SERVICES else ""


def taken(name: str, number: int, membership: Membership) -> str:
    """Say why a member can't have a name and number; empty if it can."""
    for member in membership.members:
        known = contact(member).number
        if member.name != name and number == known:
            return f"number {number} belongs to {member.name}"
        if member.name == name and number != known:
            return f"{name} has number {known}, not {number}"
    return ""


def unfit(join: Member, membership: Membership, slots: int) -> str:
    """Say why a member can't join as it asks to; empty if it can.

    Args:
        join: as it wants to be a member.
        membership: the newest.
        slots: the largest number that a database which takes writes may have.
    """
    try:
        at = contact(join)
        server = at.postgres_port if at.postgres_host else 1
        MemberAddress(name=join.name, number=at.number, host=at.host, port=at.port)
        PostgresAddress(host="", port=server, tcp_host=at.postgres_host)
    except NoContactError as error:
        return str(error)
    except ValidationError as error:
        wrong = error.errors()[0]
        return f"{join.name} can't have such a {wrong['loc'][0]}: {wrong['msg']}"
    if len(join.info) > _INFO_BYTES:
        return f"{join.name} says too much of itself"
    if not join.disk:
        return f"{join.name} does not say on which disk it is"
    if not (join.witness or join.reader or at.number <= slots):
        return f"number {at.number} of {join.name} is not one of 1 to {slots} (sequence_slots)"
    return (
        reserved(join.name)
        or of_another_disk(join.name, join.disk, membership)
        or taken(join.name, at.number, membership)
    )
