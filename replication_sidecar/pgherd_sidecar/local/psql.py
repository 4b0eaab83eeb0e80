"""``pgherd psql``: psql on a node of a herd on this machine, without a password to type.

The session is its caller's own: root's reads files that only root may read. So the command does not
become the account that owns the herd, and root runs no program that this account has named.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import binaries, herd
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.node import Node, NodeState, states_of

_SUPERUSER, _APPLICATION = "postgres", "app"


async def connect(directory: Path, words: Sequence[str], *, superuser: bool) -> NoReturn:
    """Become psql.

    Args:
        directory: of the herd.
        words: a node's name, if the first is no option; and psql's own arguments.
        superuser: as that one and not as the role of applications.

    Raises:
        HerdError: no such node, none that takes writes, or no psql.
    """
    description = herd.load(directory)
    name, arguments = split(words)
    if name is None:
        member = await writable(description)
    else:
        member = named(description, name)
    program = _psql(description, member)
    environment = {**os.environ, **surroundings(description, member, superuser=superuser)}
    try:
        os.execve(program, ["psql", *arguments], environment)
    except OSError as error:
        raise HerdError(f"{program} cannot be run ({error.strerror}): install psql") from error


def split(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the name of a node, if there is one, and psql's arguments."""
    if words and not words[0].startswith("-"):
        return words[0], words[1:]
    return None, words


def named(description: Herd, name: str) -> HerdNode:
    """Return the node of this name, whatever its state: it may be there to be read.

    Raises:
        HerdError: there is none, it has no database, or its server does not run.
    """
    member = description.member(name)
    if member.witness:
        databases = ", ".join(one.name for one in description.databases)
        raise HerdError(f"{name} is a witness and has no database: choose one of {databases}")
    if Node(description, member).server.process() is None:
        raise HerdError(
            f"PostgreSQL of {name} does not run: `pgherd local start {name}` starts it, or leave "
            "the node out"
        )
    return member


async def writable(description: Herd) -> HerdNode:
    """Return the first node that takes writes.

    Raises:
        HerdError: none does.
    """
    nodes = [Node(description, member) for member in description.writers]
    return first_writable(await states_of(nodes))


def first_writable(states: Sequence[NodeState]) -> HerdNode:
    """Return the first node that takes writes.

    Raises:
        HerdError: none does.
    """
    for state in states:
        if state.takes_writes:
            return state.member
    seen = ", ".join(f"{state.member.name} is {state.state}" for state in states)
    raise HerdError(
        f"no node takes writes ({seen}): start the herd with `pgherd local up`, or name a node to "
        "read from it"
    )


def surroundings(description: Herd, member: HerdNode, *, superuser: bool) -> Mapping[str, str]:
    """Return what libpq takes from the environment, so that psql's arguments go before it."""
    return {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(member.port),
        "PGDATABASE": "app",
        "PGUSER": _SUPERUSER if superuser else _APPLICATION,
        "PGPASSFILE": str(description.node(member).passfile),
    }


def _psql(description: Herd, member: HerdNode) -> Path:
    if os.geteuid() != 0:
        return description.programs_of(member) / "psql"
    return binaries.find(None, remedy=None) / "psql"
