"""What the members of a running herd say about it together, who speaks for it, and who leaves it.

Each member tells its own view. The one that speaks for the herd is in the primary component and
knows the newest view: the proposer, if it has answered, who alone knows how far the others are.
Without a primary component it is whoever has been in the highest term.

It keeps nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.client.view import PeerAnswer

PRIMARY = "primary"
_SUMMARY = (
    "view", "term", "proposer", "quorum", "component",
    "held", "held_since", "held_gid", "databases",
)  # fmt: skip
_POLL_S = 0.1
_ASK_AGAIN_S = 1.0
_SILENT_S = 2.0
"""Who is dead is not heard for as long, which is several heartbeats."""
_LOOKS = 3
"""Whom we want to evict may have died just now, and not each member has heard from it last."""


@dataclass(frozen=True, slots=True)
class Voice:
    """A sidecar that has answered."""

    admin: AdminClient
    status: Status


Listen = Callable[[], Awaitable[list[Voice]]]
"""Asks the sidecars; returns those that have answered."""


def speaker(statuses: Iterable[Status]) -> Status | None:
    """Whoever speaks for the herd, None if nobody has answered."""
    return max(statuses, key=_rank, default=None)


def _rank(status: Status) -> tuple[bool, int, bool, int, int]:
    view = status.view.id if status.view is not None else 0
    proposes = status.role == "proposer"
    return status.component == PRIMARY, status.term or 0, proposes, view, status.log_position or 0


def required(voices: Iterable[Voice]) -> Voice:
    """The one that speaks for a herd whose membership can be changed.

    Raises:
        HerdError: there is no primary component.
    """
    found = max(voices, key=lambda voice: _rank(voice.status), default=None)
    if found is None:
        raise HerdError("no other sidecar answers: start more nodes")
    if found.status.component != PRIMARY or found.status.view is None:
        raise HerdError(
            f"there is no primary component ({found.status.reason or 'no reason given'}): "
            "start more nodes"
        )
    return found


def summary(said: Status | None, knows: Status | None = None) -> dict[str, Any]:
    """What is said of the herd, for ``--json``.

    Args:
        said: the speaker.
        knows: the one that speaks for the databases, if that is another.
    """
    herd: dict[str, Any] = dict.fromkeys(_SUMMARY)
    if said is not None:
        herd = said.model_dump(mode="json", include=set(_SUMMARY))
    knows = said if knows is None else knows
    databases = {"databases", "held", "held_since", "held_gid"}
    return herd | (knows.model_dump(mode="json", include=databases) if knows is not None else {})


def informed(statuses: Iterable[Status]) -> Status | None:
    """Whoever speaks for the databases: a witness knows nothing of them."""
    return speaker(status for status in statuses if status.databases)


def seen(said: Status | None, name: str) -> PeerAnswer:
    """What the speaker knows of a member."""
    if said is None:
        return PeerAnswer()
    if name == said.name:
        return PeerAnswer(
            role=said.role, lag_bytes=0, lag_entries=0, last_seen_s=0.0, lagging_s=0.0
        )
    return said.peers.get(name, PeerAnswer())


async def listen(admin: AdminClient) -> list[Voice]:
    """Ask one sidecar.

    Raises:
        HerdError: it does not answer.
    """
    try:
        return [Voice(admin, await admin.status())]
    except AdminError as error:
        raise HerdError(str(error)) from error


async def release(listen: Listen, hold: str) -> list[str]:
    """Have all members that answer give a hold of their logs back.

    Returns:
        The names of those that had it.

    Raises:
        HerdError: none had it, or one can't give it back.
    """
    released = []
    for voice in await listen():
        if any(one.hold == hold for one in voice.status.log_holds):
            try:
                if await voice.admin.release_hold(hold):
                    released.append(voice.status.name)
            except AdminError as error:
                raise HerdError(f"{voice.status.name} keeps {hold}: {error}") from error
    if not released:
        raise HerdError(f"no member that answers has a hold {hold}: see `pgherd status`")
    return released


async def evict(listen: Listen, name: str) -> None:
    """Throw a member out of the view that does not answer.

    Raises:
        HerdError: no member is called so, it answers the others, or nobody can decide it.
    """
    for _ in range(_LOOKS):
        heard_s = await _silence(listen, name)
        if heard_s >= _SILENT_S:
            await take_out(listen, name, dead=True)
            return
        await asyncio.sleep(_SILENT_S - heard_s)
    raise HerdError(
        f"{name} answers: `pgherd local remove {name}`, or on Kubernetes fewer instances, has it "
        "leave"
    )


async def _silence(listen: Listen, name: str) -> float:
    """Return for how long a member has not been heard, in seconds, as far as that matters.

    Raises:
        HerdError: no member is called so, or there is no primary component.
    """
    everybody = await listen()
    if [one.status.name for one in everybody] == [name]:
        raise HerdError(
            f"only {name} itself answers, and it is for the others to throw it out: start them, "
            "or destroy the herd if there are none"
        )
    via = required([one for one in everybody if one.status.name != name])
    assert via.status.view is not None
    if via.status.view.member(name) is None:
        names = ", ".join(member.name for member in via.status.view.members)
        raise HerdError(f"{name} is no member: the view has {names}")
    silent_s = seen(via.status, name).last_seen_s
    return _SILENT_S if silent_s is None else silent_s


async def take_out(listen: Listen, name: str, *, dead: bool) -> None:
    """Have a member leave the view; return when it has.

    Args:
        listen: asks the members.
        name: of the member.
        dead: it is thrown out, because it does not answer.

    Raises:
        HerdError: it is refused, or nobody else can decide it.
    """
    disk_id = ""
    while True:
        via = required([one for one in await listen() if one.status.name != name])
        assert via.status.view is not None
        known = via.status.view.member(name)
        if known is None or (disk_id and known.disk_id not in ("", disk_id)):
            return  # it is gone, or a successor has taken its place
        disk_id = known.disk_id
        try:
            await (via.admin.evict if dead else via.admin.leave)(name, disk_id)
        except AdminError as error:
            if not error.may_pass:
                raise HerdError(f"{name} can't leave: {error.reason}") from error
        await _until_told(via, name)


async def _until_told(via: Voice, name: str) -> None:
    """Wait until a member is out of the view, or it is time to ask again."""
    try:
        async with asyncio.timeout(_ASK_AGAIN_S):
            while True:
                view = (await via.admin.status()).view
                if view is not None and view.member(name) is None:
                    return
                await asyncio.sleep(_POLL_S)
    except (TimeoutError, AdminError):
        return  # asked again, perhaps by way of somebody else
