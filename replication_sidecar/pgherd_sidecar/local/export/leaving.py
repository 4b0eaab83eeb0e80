"""``pgherd export plain``: a member of a herd on this machine becomes a plain PostgreSQL server.

It is compared with the others at one GID, leaves the view as by ``local remove``, and its data go
to a directory of their own. There the server is started for nobody but us, all that is ours is
taken out of its database, and then it is started for everybody.

What is to be done is written down in that directory before the member leaves, so the same command
ends what died half-way. Until the data have been moved the herd knows the member; from then on the
herd is asked for nothing more.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from pydantic import BaseModel, ConfigDict, ValidationError

from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.errors import HerdError, progress
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.export.plainserver import PlainServer
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.lock import locked
from pgherd_sidecar.local.node import Node, NodeState, states_of
from pgherd_sidecar.local.operations import growing, verify

PLAN_FILE = "export.json"
_POLL_S = 0.1
_CONNECT_S = 10
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class LeavingOptions:
    """What the user asked for.

    Attributes:
        into: directory of the plain server; empty, or one that this command has begun to fill.
        allow_missing: members that do not take writes are neither compared nor asked.
        timeout_s: for the comparison, and for each step that waits.
    """

    into: Path
    allow_missing: bool
    timeout_s: float


class LeavingPlan(BaseModel):
    """What is written down, with the passwords that ``herd.json`` is about to forget.

    Attributes:
        cluster_id: of the herd.
        verified_gid: where its rows were compared with those of the others.
        stands_at: its database had come so far when that was looked at last.
        standings: of the other members with their sequences; None until they were asked.
    """

    model_config = ConfigDict(frozen=True)

    cluster_id: UUID
    member: HerdNode
    postgres_bin: Path
    superuser_password: str
    app_password: str
    verified_gid: int
    stands_at: int
    standings: tuple[dict[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """The plain server, which runs.

    Attributes:
        gid: all up to it is in its database.
    """

    server: PlainServer
    gid: int


async def leave(directory: Path, name: str, options: LeavingOptions) -> Left:
    """Make a member a plain server; return when it accepts connections.

    Raises:
        HerdError: it can't leave, or takes too long.
    """
    async with locked(directory):
        description = herd.load(directory)
        plan = _begun(options.into, description, name)
        if plan is None or await _is_in(description, plan, options.into):
            plan = await _verified(description, name, options)
            _save(options.into, plan)
        server = _server(options.into, plan)
        if not server.exists():
            plan = await _out_of_the_herd(description, plan, options)
            server.take(description.node(plan.member).pgdata)
        if plan.member in description.members:
            herd.save(description.without(plan.member))
        growing.remove_files(description, plan.member.name)
        progress(f"{name}: taking out of its database what is pgherd's")
        await server.stop(options.timeout_s)
        server.configure()
        plan = await _made_plain(server, plan, options)
        await server.start(options.timeout_s)
        (options.into / PLAN_FILE).unlink()
        return Left(server, plan.stands_at)


def _server(into: Path, plan: LeavingPlan) -> PlainServer:
    passwords = {"postgres": plan.superuser_password, "app": plan.app_password}
    return PlainServer(into, plan.postgres_bin, plan.member.port, passwords)


def _begun(into: Path, description: Herd, name: str) -> LeavingPlan | None:
    """Return what an earlier attempt has written down, None if there was none.

    Raises:
        HerdError: the directory is in use for something else.
    """
    path = into / PLAN_FILE
    if not path.exists():
        description.member(name)
        if into.exists() and any(into.iterdir()):
            raise HerdError(f"{into} is not empty: choose an empty or new --into")
        return None
    try:
        plan = LeavingPlan.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise HerdError(f"{path} is damaged: {error.errors()[0]['msg']}") from error
    if (plan.cluster_id, plan.member.name) != (description.cluster_id, name):
        raise HerdError(
            f"{into} is for {plan.member.name} of another export: choose another --into"
        )
    return plan


async def _is_in(description: Herd, plan: LeavingPlan, into: Path) -> bool:
    """Whether the member is in the view: then it may have changed since it was compared."""
    return not _server(into, plan).exists() and not await growing.is_out(
        description, plan.member.name
    )


def _save(into: Path, plan: LeavingPlan) -> None:
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    herd.write(into / PLAN_FILE, plan)


async def _verified(description: Herd, name: str, options: LeavingOptions) -> LeavingPlan:
    """Check that the member can leave and has the rows that the others have.

    Raises:
        HerdError: it can't, or it has not.
    """
    member = require_able(description, name)
    require_place(description, options.into)
    nodes = [Node(description, one) for one in description.databases]
    states = await states_of(nodes)
    require_caught_up(next(state for state in states if state.member == member))
    await _require_no_obstacles(description.dsn(member))
    progress(f"{name}: comparing its rows with those of the others")
    asked = verify.VerifyOptions(options.allow_missing, 1, options.timeout_s)
    found = await verify.verify(nodes, asked)
    require_same(name, found)
    return LeavingPlan(
        cluster_id=description.cluster_id,
        member=member,
        postgres_bin=description.programs_of(member),
        superuser_password=description.superuser_password,
        app_password=description.app_password,
        verified_gid=found.gid,
        stands_at=await _ask(description.dsn(member), "SELECT pgherd.last_gid()"),
    )


def require_able(description: Herd, name: str) -> HerdNode:
    """Return the member, which has a database and is not the only one that has.

    Raises:
        HerdError: it has none, or is the last.
    """
    member = description.member(name)
    if member.witness:
        databases = ", ".join(one.name for one in description.databases)
        raise HerdError(f"{name} is a witness and has no database: export one of {databases}")
    if description.databases == (member,):
        raise HerdError(
            f"{name} is the last database, and a member leaves a herd that goes on: "
            f"`pgherd local add` another one first, or take its rows by `pgherd export dump {name}`"
        )
    return member


def require_place(description: Herd, into: Path) -> None:
    """Check that the data can be moved to a directory.

    Raises:
        HerdError: it is the herd's, or on another file system.
    """
    herd.require_plain(into)
    if into.is_relative_to(description.directory):
        raise HerdError(f"{into} is in the herd's directory: choose another --into")
    parent = next(path for path in (into, *into.parents) if path.exists())
    if parent.stat().st_dev != description.directory.stat().st_dev:
        raise HerdError(f"{into} is on another file system: choose another --into")


def require_caught_up(state: NodeState) -> None:
    """Check that a member takes writes, so that it has what the others have.

    Raises:
        HerdError: it does not.
    """
    if not state.takes_writes:
        name = state.member.name
        raise HerdError(
            f"{name} is {state.state} ({state.reason or 'no reason given'}), and only a member "
            "that takes writes has all rows: export another one, or wait until this one does"
        )


def require_same(name: str, found: verify.Comparison) -> None:
    """Check what a comparison says of a member.

    Raises:
        HerdError: it differs from another one, or its indexes from its tables.
    """
    different = [table.name for table in found.tables if not table.identical]
    if different:
        named = ", ".join(different[:_MOST_NAMED])
        raise HerdError(
            f"the members differ at GID {found.gid} in {named}: `pgherd local verify` tells more, "
            f"and {name} stays in the herd"
        )
    indexes = found.indexes.get(name)
    if indexes is not None and indexes.faults:
        raise HerdError(
            f"indexes of {name} do not fit their tables, see `pgherd local verify`: "
            "REINDEX them first"
        )


async def _require_no_obstacles(dsn: str) -> None:
    found = await _ask(dsn, "SELECT pgherd.leaving_obstacles()")
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise HerdError(
            f"{found[0]}{more}: a plain server has nothing in its place; change or drop it first"
        )


async def _out_of_the_herd(
    description: Herd, plan: LeavingPlan, options: LeavingOptions
) -> LeavingPlan:
    """Have the member leave the view, apply what it has, and stop; ask for the others' numbers.

    Raises:
        HerdError: it is refused, or takes too long.
    """
    name, node = plan.member.name, Node(description, plan.member)
    listen = partial(growing.voices, description)
    runs = node.sidecar.process() is not None
    if not runs and not await growing.is_out(description, name):
        raise HerdError(f"the sidecar of {name} does not run: `pgherd local start {name}`")
    try:
        async with asyncio.timeout(options.timeout_s):
            await cluster.take_out(listen, name, dead=False)
            if runs:
                await _drained(node)
    except TimeoutError as error:
        raise HerdError(
            f"{name} has not left after {options.timeout_s:g} s: repeat the command to go on"
        ) from error
    progress(f"{name}: has left")
    standings = await _standings(description, plan.member, options)
    if node.server.process() is not None:
        gid = await _ask(description.dsn(plan.member), "SELECT pgherd.last_gid()")
        plan = plan.model_copy(update={"stands_at": max(gid, plan.stands_at)})
    plan = plan.model_copy(update={"standings": standings})
    _save(options.into, plan)
    await node.stop()
    return plan


async def _drained(node: Node) -> None:
    """Wait until a member that has left has applied all that it heard before.

    Raises:
        HerdError: it ended meanwhile.
    """
    while True:
        state = await node.state()
        if not state.sidecar:
            raise HerdError(
                f"the sidecar of {state.member.name} has ended: {node.sidecar.last_words()}"
            )
        said = state.answer
        if state.state == "departed" and said is not None:
            left = (said.lag_entries, said.apply_queue_bytes, said.pending)
            if not any(left):
                return
        await asyncio.sleep(_POLL_S)


async def _standings(
    description: Herd, member: HerdNode, options: LeavingOptions
) -> tuple[dict[str, Any], ...]:
    """What the other members say of their sequences. Only later numbers are theirs alone."""
    found: list[dict[str, Any]] = []
    for other in description.writers:
        if other == member:
            continue
        try:
            found.append(await _ask(description.dsn(other), "SELECT pgherd.sequence_standings()"))
        except HerdError as error:
            if not options.allow_missing:
                raise HerdError(
                    f"{error.message}: start {other.name}, or --allow-missing"
                ) from error
            progress(f"{other.name}: numbers that it gave out and that are in no row are not known")
    return tuple(found)


async def _ask(dsn: str, statement: str) -> Any:
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, connect_timeout=_CONNECT_S
        ) as connection:
            row = await (await connection.execute(statement.encode())).fetchone()
    except psycopg.Error as error:
        raise HerdError(f"a server does not answer as it should: {error}") from error
    return row[0] if row is not None else None


async def _made_plain(
    server: PlainServer, plan: LeavingPlan, options: LeavingOptions
) -> LeavingPlan:
    """Take out of the database what is ours, unless an earlier attempt has done it.

    Raises:
        HerdError: it is not as far as it was, or PostgreSQL refuses.
    """
    sockets = Path(tempfile.mkdtemp(prefix="pgherd-", dir="/tmp"))
    try:
        await server.start(options.timeout_s, alone_in=sockets)
        where = server.superuser(sockets)
        async with await psycopg.AsyncConnection.connect(where, autocommit=True) as connection:
            await connection.execute("SET default_transaction_read_only = off")
            there = await connection.execute("SELECT to_regnamespace('pgherd') IS NOT NULL")
            if await there.fetchone() == (True,):
                plan = await _uninstalled(connection, plan)
                _save(options.into, plan)
            await connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
    except psycopg.Error as error:
        raise HerdError(f"{plan.member.name} can't be made plain: {error}") from error
    finally:
        await server.stop(options.timeout_s)
        shutil.rmtree(sockets, ignore_errors=True)
    return plan


async def _uninstalled(connection: psycopg.AsyncConnection[Any], plan: LeavingPlan) -> LeavingPlan:
    row = await (await connection.execute("SELECT pgherd.last_gid()")).fetchone()
    gid: int = row[0] if row is not None else 0
    if gid < plan.stands_at:
        raise HerdError(
            f"{plan.member.name} was at GID {plan.stands_at}, and its server has come back at "
            f"{gid}: its last commits are lost; export another member"
        )
    standings: tuple[Mapping[str, Any], ...] = plan.standings or ()
    await connection.execute("SELECT pgherd.uninstall(%s::jsonb)", (json.dumps(standings),))
    return plan.model_copy(update={"stands_at": gid})
