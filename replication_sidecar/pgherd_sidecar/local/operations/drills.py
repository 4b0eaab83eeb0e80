"""``pgherd local partition`` and ``heal``: cut the links between running nodes, and mend them.

Each sidecar is told whom it must not hear: it keeps that in memory only, so a node that is started
anew has all of its links. Meant for drills and tests; PostgreSQL's own ports stay open.
"""

from pathlib import Path

from pgherd_sidecar.client.admin import AdminError, NoSidecarError
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node
from pgherd_sidecar.local.sidecar import Sidecar

_ENDS_S = 20.0
"""So long a sidecar that does not listen any more may take to end."""


def parse(text: str, description: Herd) -> list[frozenset[str]]:
    """Read the sides of a partition, ``n1,n2|n3``.

    Raises:
        HerdError: a name is unknown, named twice, or missing, or there is one side only.
    """
    sides = [[name.strip() for name in side.split(",")] for side in text.split("|")]
    named = [name for side in sides for name in side]
    for name in named:
        description.member(name)
        if named.count(name) > 1:
            raise HerdError(f"{name} is named twice: a node is on one side only")
    missing = [member.name for member in description.members if member.name not in named]
    if missing:
        raise HerdError(f"on which side are {', '.join(missing)}? name every node once")
    if len(sides) < 2:
        raise HerdError("a partition has two sides or more, like 'n1,n2|n3'")
    return [frozenset(side) for side in sides]


async def partition(directory: Path, text: str) -> None:
    """Cut all links between the sides.

    Raises:
        HerdError: the sides are not ones, or a running sidecar refuses.
    """
    async with locked(directory):
        description = herd.load(directory)
        everybody = frozenset(member.name for member in description.members)
        for side in parse(text, description):
            await _block(description, side, everybody - side)


async def heal(directory: Path) -> None:
    """Open all links again.

    Raises:
        HerdError: a running sidecar refuses.
    """
    async with locked(directory):
        description = herd.load(directory)
        everybody = frozenset(member.name for member in description.members)
        await _block(description, everybody, frozenset())


async def _block(description: Herd, names: frozenset[str], blocked: frozenset[str]) -> None:
    for name in sorted(names):
        sidecar = Node(description, description.member(name)).sidecar
        try:
            told = await _tell(sidecar, blocked)
        except AdminError as error:
            raise HerdError(f"{name}: {error}") from error
        if not told:
            progress(f"{name} does not run: when it starts, its links are open")


async def _tell(sidecar: Sidecar, blocked: frozenset[str]) -> bool:
    """Tell a sidecar whom not to hear; False if it does not run, or ends just now.

    Raises:
        AdminError: it runs, and does not answer or refuses.
    """
    process = sidecar.process()
    if process is None:
        return False
    try:
        await sidecar.admin.block_links(blocked)
    except NoSidecarError:
        if await process.wait_exit(_ENDS_S):
            return False
        raise
    return True
