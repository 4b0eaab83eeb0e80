"""``kubectl pgherd verify``: what ``pgherd local verify`` does, with the sidecars of a herd's pods.

Every request to a sidecar is an exec into its pod, so it takes no more rights than the other
commands. Who belongs to the herd is the sidecars' word; a member without a pod is missed.
"""

import asyncio
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.cluster import speaker
from pgherd_sidecar.client.errors import HerdError, last_words, progress
from pgherd_sidecar.local.operations.verify import Comparison, VerifyOptions, compare

_UP = ("primary", "reader")


class PodClient(AdminClient):
    """Calls to the sidecar of a pod.

    Args:
        command: that passes a request on its standard input to the sidecar, and the answer to its
            standard output.
        pod: its name.
    """

    reaching_s = 15

    def __init__(self, command: Sequence[str], pod: str) -> None:
        super().__init__(Path(pod))
        self._command = command

    async def exchange(self, request: bytes) -> bytes:
        """See ``AdminClient``."""
        process = _started(self._command)
        talking = asyncio.ensure_future(asyncio.to_thread(process.communicate, request))
        try:
            answer, complaints = await asyncio.shield(talking)
        finally:
            if not talking.done():
                process.kill()
                await asyncio.wait({talking})
        if process.returncode:
            raise OSError(last_words(complaints.decode(errors="replace")))
        return answer


def _started(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Not by asyncio: some event loops keep the pipes of one program open in the next."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


async def verify(clients: Mapping[str, AdminClient], options: VerifyOptions) -> Comparison:
    """Compare all members of a herd that have a database.

    Args:
        clients: of the sidecars, by the names of their pods, which are those of the members.
        options: what the user asked for.

    Raises:
        HerdError: a member does not take writes and is not to be left out, or does not answer.
    """
    answers = await asyncio.gather(*(_status(client) for client in clients.values()))
    states = dict(zip(clients, answers, strict=True))
    said = speaker(one for one in answers if isinstance(one, Status))
    if said is None or said.view is None:
        reason = next((f" ({one})" for one in answers if isinstance(one, AdminError)), "")
        raise HerdError(f"no sidecar answers{reason}: look at the pods, `kubectl get pods`")
    wanted = [member.name for member in said.view.members if not member.witness]
    skipped = tuple(name for name in wanted if not _is_up(states.get(name)))
    if skipped and not options.allow_missing:
        raise HerdError(
            f"not every member is up ({_told(skipped, states)}): wait until it is, or leave it "
            "out with --allow-missing"
        )
    if skipped:
        progress(f"left out: {', '.join(skipped)}")
    up = {name: clients[name] for name in wanted if name not in skipped}
    if not up:
        raise HerdError("no member takes writes: see `kubectl pgherd status`")
    return await compare(up, skipped, options)


async def _status(client: AdminClient) -> Status | AdminError:
    try:
        return await client.status()
    except AdminError as error:
        return error


def _is_up(status: Status | AdminError | None) -> bool:
    return isinstance(status, Status) and status.state in _UP


def _told(names: Iterable[str], states: Mapping[str, Status | AdminError]) -> str:
    found = {name: states.get(name) for name in names}
    return ", ".join(
        f"{name} {f'is {said.state}' if isinstance(said, Status) else 'does not answer'}"
        for name, said in found.items()
    )
