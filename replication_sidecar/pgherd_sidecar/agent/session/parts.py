"""The parts of a session of the replica, and how they are put together.

Each part is made from parts that are there already, and holds none that comes later. So the order
of construction is the order in which to read them:

1. the commit path, which decides and does no IO;
2. the *callers*: the hook's socket, and what sessions of the server that call there wait for;
3. the *writers*: what writes into the server, and frees the way for that.

Parts that come later hear of earlier ones by calling them. ``delivery`` hands to all of them what
the log brings.
"""

from collections.abc import Set
from dataclasses import dataclass
from functools import partial

from pgherd_sidecar.agent.apply.applier import Applier
from pgherd_sidecar.agent.apply.ddlrun import DdlRunner, describe
from pgherd_sidecar.agent.apply.large import LargeTransactions, Surroundings
from pgherd_sidecar.agent.apply.trying import Trial
from pgherd_sidecar.agent.apply.writers import Writers
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.checkpoint.verdicts import Verdicts
from pgherd_sidecar.agent.commit.leaks import Leaks
from pgherd_sidecar.agent.commit.settler import Settler, Visibility
from pgherd_sidecar.agent.commit.tasks import Tasks
from pgherd_sidecar.agent.commit.victims import LockWatcher
from pgherd_sidecar.agent.hook.precedence import Precedence
from pgherd_sidecar.agent.hook.server import HookServer, transaction_limits
from pgherd_sidecar.agent.hook.showing import Showing
from pgherd_sidecar.agent.hook.voting import Voting
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.maintenance.guard import SeenHerd
from pgherd_sidecar.agent.maintenance.keeper import Keeper, KnownHerd
from pgherd_sidecar.agent.maintenance.work import MemberService
from pgherd_sidecar.agent.server import startup
from pgherd_sidecar.agent.session.backend import SessionBackend
from pgherd_sidecar.agent.session.barriers import Barriers
from pgherd_sidecar.agent.session.freshness import AgeWatch
from pgherd_sidecar.agent.session.longcommands import LongCommands
from pgherd_sidecar.agent.session.opening import Opening
from pgherd_sidecar.agent.session.upkeep import Upkeep
from pgherd_sidecar.agent.standing.holding import names_of
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.replication.databases import Databases
from pgherd_sidecar.pg.rows import RowStatements


@dataclass(frozen=True, slots=True)
class Callers:
    """Where sessions of the server call, and what they wait for there.

    Attributes:
        visibility: of GIDs on this node.
        precedence: of commands that would lose for ever.
        voting: on commands that other members may not be able to execute.
        trial: what this member says when others ask it that.
        showing: whether the other members show a command.
        barriers: of readers that want to see all that was acknowledged.
        long: this member's part of the long commands.
        backend: whether this node takes writes, and all of the above for the hook.
        hook: the socket.
    """

    visibility: Visibility
    precedence: Precedence
    voting: Voting
    trial: Trial
    showing: Showing
    barriers: Barriers
    long: LongCommands
    backend: SessionBackend
    hook: HookServer

    async def answer_poll(self, question: bytes) -> bytes:
        """Answer what another member asks beside the log."""
        if self.showing.is_asked(question):
            return await self.showing.tell(question)
        return await self.trial.answer(question)


@dataclass(frozen=True, slots=True)
class WritingParts:
    """The parts that write into the server, in GID order.

    Attributes:
        ddl: executes transactions with DDL.
        large: applies transactions in pieces.
        settler: learns what has committed, and repairs the rest.
        leaks: transactions that have committed uncertified.
        applier: applies what other members committed.
        watcher: frees the way for all of these.
    """

    ddl: DdlRunner
    large: LargeTransactions
    settler: Settler
    leaks: Leaks
    applier: Applier
    watcher: LockWatcher


def make_path(config: NodeConfig, opening: Opening) -> CommitPath:
    """Begin the commit path where the database stands."""
    return CommitPath(
        config.number,
        opening.incarnation,
        opening.state,
        opening.server.chain_end,
        transaction_limits(config.limits),
        skips=opening.skips,
        passed=opening.passed,
        singly_to=opening.singly_to,
    )


def make_callers(config: NodeConfig, host: LogHost, opening: Opening, path: CommitPath) -> Callers:
    """Make what sessions of the server call; the socket is not opened yet."""
    state = opening.state
    visibility = Visibility(path.chain)
    precedence = Precedence(
        member=config.number,
        incarnation=opening.incarnation,
        submit=host.submit,
        state=state,
        visible_before=visibility.visible_before,
        connection=opening.admin,
    )
    barriers = Barriers(host, delivered=lambda: state.position, newest=lambda: path.chain.tail_gid)
    trial = Trial(config, visibility.visible, newest=lambda: path.chain.tail_gid)
    away: set[str] = set()
    voting = Voting(host.polls.ask, lambda: _others(config, host, away), trial.answer)
    showing = Showing(host.polls.ask, lambda: _asked(config, host, away), visibility.visible)
    long = LongCommands(config, host, state.databases, away)
    backend = SessionBackend(
        host,
        state,
        visibility=visibility,
        precedence=precedence,
        voting=voting,
        showing=showing,
        barriers=barriers,
        long=long,
        away=away,
    )
    hook = HookServer(
        directory=config.hook_dir,
        secret=opening.server.secret,
        path=path,
        submit=host.submit,
        backend=backend,
        limits=transaction_limits(config.limits),
    )
    return Callers(visibility, precedence, voting, trial, showing, barriers, long, backend, hook)


def _others(config: NodeConfig, host: LogHost, away: Set[str]) -> dict[str, int]:
    """The other voters that have a database and are not away, and the links to them."""
    membership = host.membership
    voters = set(membership.voters) - {config.name} - away
    names = {one.name for one in membership.members if not one.witness} & voters
    return {name: host.polls.links[name] for name in names}


def _asked(config: NodeConfig, host: LogHost, away: Set[str]) -> frozenset[str]:
    """Those of them that can be reached at present."""
    return host.peers.members_heard() & _others(config, host, away).keys()


def make_writing(
    config: NodeConfig, host: LogHost, opening: Opening, path: CommitPath, callers: Callers
) -> WritingParts:
    """Make what writes; nothing runs yet."""
    admin, state, visibility = opening.admin, opening.state, callers.visibility
    writers = Writers()
    rows = RowStatements(partial(describe, admin))
    ddl = DdlRunner(config, writers)
    large = LargeTransactions(
        Surroundings(
            startup.conninfo(config, "pgherd large", startup.APPLY_ROLE),
            log=host.reader,
            describe=partial(describe, admin),
            writers=writers,
            delivered=lambda: state.position,
            visible=visibility.visible_before,
            deciding=lambda: path.outbox.paused,
            silence_s=2 * transaction_limits(config.limits).wait_s,
        )
    )
    settler = Settler(
        connection=admin,
        pipeline=opening.repair,
        rows=RowStatements(partial(describe, admin)),
        ddl=ddl,
        large=large,
        writers=writers,
        chain=path.chain,
        visibility=visibility,
    )
    leaks = Leaks(admin, path, transaction_limits(config.limits))
    applier = Applier(
        pipeline=opening.apply,
        chain=path.chain,
        batches=path.batches,
        rows=rows,
        writers=writers,
        repair=settler.repair_transaction,
        perform=Tasks(admin, ddl=ddl, large=large, leaks=leaks, rows=rows).perform,
        on_token=callers.hook.carry_out,
    )
    watcher = LockWatcher(
        opening.watch,
        writers=writers,
        path=path,
        carry_out=callers.hook.carry_out,
        command_lost=callers.precedence.lost,
        refuse=callers.hook.refuse,
    )
    return WritingParts(ddl, large, settler, leaks, applier, watcher)


def make_keeper(
    config: NodeConfig,
    host: LogHost,
    opening: Opening,
    path: CommitPath,
    callers: Callers,
    writing: WritingParts,
    age: AgeWatch,
) -> Keeper:
    """Make what does this member's part of maintenance."""
    backend, watcher = callers.backend, writing.watcher

    def drain(reason: str | None) -> None:
        backend.drained = reason

    def spare(pid: int | None) -> None:
        watcher.spared = pid

    def others_away(names: frozenset[str]) -> None:
        backend.away.clear()
        backend.away.update(names)

    return Keeper(
        config,
        KnownHerd(
            ready=lambda: backend.out_of_service() is None,
            alone_s=lambda: host.secondary_s,
            herd=lambda: herd_of(host, opening.state.databases),
            members=lambda: maintained(host),
            others_away=others_away,
        ),
        MemberService(
            drain,
            spare,
            known=lambda: host.commit_position,
            visible=lambda: path.visible_gid,
            age_s=age.age_s,
        ),
    )


def herd_of(host: LogHost, databases: Databases) -> SeenHerd | None:
    """The herd as it is known when a member is to be taken out of service."""
    view, names = host.membership.view, names_of(host.membership)
    if view is None:
        return None
    whole = {names[number] for number in databases.whole if number in names}
    return SeenHerd(view, host.peers.members_heard(), whole)


def maintained(host: LogHost) -> list[str]:
    """The names of the members that can be maintained: voters with a database."""
    voters = host.membership.voters
    return [name for name in names_of(host.membership).values() if name in voters]


def make_house(
    config: NodeConfig,
    host: LogHost,
    opening: Opening,
    path: CommitPath,
    writing: WritingParts,
    verdicts: Verdicts,
) -> Upkeep:
    """Make the housekeeping, which nothing waits for."""
    return Upkeep(
        opening.house,
        config,
        host,
        chain=path.chain,
        state=opening.state,
        verdicts=verdicts,
        leaked=writing.leaks.order_leak,
    )
