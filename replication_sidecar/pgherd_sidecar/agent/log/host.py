"""The ordered log of one member as a running thing: protocol core, disk and links on one loop.

It feeds what arrives to ``LogMember`` and does what that asks for, and adds nothing to the
protocol. All inputs of one iteration of the event loop are followed by one flush, so that many
messages together cost one append, one write to disk and one message to each peer.

The caller (the replica) submits entries, is told when the commit position has advanced, and reads
blocks. The contract of submissions is the log's (see ``core.consensus``): they may be lost or
ordered twice, so the caller keeps and identifies them.

``data_dir/log`` survives a restart; the commit position may be lower after one.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random

import structlog

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.alarm import Alarm
from pgherd_sidecar.agent.log.collector import Collector
from pgherd_sidecar.agent.log.extent import LogExtent
from pgherd_sidecar.agent.log.news import LogListener, News
from pgherd_sidecar.agent.log.polls import Polls
from pgherd_sidecar.agent.log.reader import LogReader
from pgherd_sidecar.agent.log.setup import open_log, reset_log, timing
from pgherd_sidecar.agent.log.splitter import Splitter
from pgherd_sidecar.agent.log.status import log_status
from pgherd_sidecar.agent.log.writer import LogWriter
from pgherd_sidecar.agent.membership import founding
from pgherd_sidecar.agent.membership.component import ComponentWatch
from pgherd_sidecar.agent.membership.peers import Peers
from pgherd_sidecar.core.consensus import (
    Barrier,
    Block,
    Fetch,
    Limits,
    LocalProtocolError,
    LogBase,
    LogMember,
    Member,
    Membership,
    Message,
    Role,
    SplitMessage,
)
from pgherd_sidecar.core.consensus.model.messages import Change, PollReply, PollRequest
from pgherd_sidecar.core.replication.entries import Noop, encode_entry
from pgherd_sidecar.env.network.tls import TlsError
from pgherd_sidecar.env.storage.segments import StorageDamaged, StorageError

_log = structlog.get_logger()

_OVERHEAD_BYTES = 4096
"""More than a message around one submission takes."""


class LogHost:
    """This member's part in the ordered log.

    Attributes:
        extent: from where on the log is held, here and by the others.
        reader: reads the log, and knows what is damaged.
        whole: set once the log holds all that this member has ever acknowledged: not after damage
            has cut it off, until it was fed again.
        splitter: this member's share in splitting the cluster for good.
        polls: what members ask each other beside the log.

    Args:
        config: whose log, where, and who founds the herd or is asked first.
        disk: identity of the disk that the log is on.
        on_failure: called once, on the loop, when this member must not go on: its disk failed or
            it would break the protocol. Nothing is sent any more; the process should exit.
        on_split: called once, on the loop, when there is something to be done on the closed log,
            because this member splits off from the cluster.

    Raises:
        IdentityError: what is on disk about a split is damaged.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        disk: str,
        on_failure: Callable[[Exception], None],
        on_split: Callable[[], None],
    ) -> None:
        self.max_submission_bytes = config.limits.frame_bytes - _OVERHEAD_BYTES
        self.disk = disk
        self.whole = asyncio.Event()
        self.witness = config.witness
        self.splitter = Splitter(config, disk, self, on_split)
        self.polls = Polls(lambda: self._peers)
        self._config = config
        self._on_failure = on_failure
        self._listeners: tuple[LogListener, ...] = ()
        self._running = False
        self._flush_due = False

    # ---- the caller's side -----------------------------------------------------------------

    async def start(self) -> None:
        """Open the log and take part.

        Raises:
            StorageError: the log on disk can't be used.
            TlsError: this member's certificate can't be used.
            OSError: the peer port can't be listened on.
        """
        loop = self._loop = asyncio.get_running_loop()
        config = self._config
        self._storage = await loop.run_in_executor(None, open_log, config)
        self._member = LogMember(
            config.name,
            control=self._storage.control,
            log=self._storage.index,
            timing=timing(config),
            rng=Random(),
            noop=encode_entry(Noop()),
            now=loop.time(),
            limits=Limits(
                submission=self.max_submission_bytes, pending=config.limits.pending_bytes
            ),
            disk=self.disk,
        )
        self._writer = LogWriter(
            self._storage, persisted=self._persisted, trimmed=self._trimmed, failed=self._fail
        )
        self._peers = Peers(
            config,
            self.disk,
            self._member,
            receive=self._receive,
            on_up=self._link_up,
            on_ended=self._peer_ended,
            ask=lambda wish: self.change_membership(join=wish),
            on_retired=self._retire,
            successor=self.splitter.successor,
        )
        self.extent = LogExtent(self._storage, self._member)
        self.reader = LogReader(self._storage, self._member, now=loop.time, wake=self._wake)
        self._member.abstains = founding.pristine(self._storage) and bool(founding.others(config))
        self._news = News(self._member)
        self._component = ComponentWatch(self._member, loop.time)
        self._collector = Collector(self._member, loop.time)
        self._alarm = Alarm(loop, self._tick)
        if self._member.incomplete:
            self.whole.clear()
        self._running = not (self._peers.retired or self.splitter.sealed)
        await self._peers.start()
        self.splitter.start()
        self._wake()

    def listen(self, listener: LogListener) -> None:
        """Tell somebody what happens to the log, from now on."""
        self._listeners += (listener,)

    def ignore(self, listener: LogListener) -> None:
        """Tell him nothing any more."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)

    async def stop(self) -> None:
        """Leave: close the links, finish what is being written, close the log."""
        self._running = False
        self.reader.close()
        self.splitter.stop()
        self._alarm.cancel()
        await self._peers.stop()
        await self._writer.close()
        self._storage.close()

    def submit(self, data: bytes, count: int) -> bool:
        """Ask for ``count`` entries to be ordered; True promises nothing.

        Returns:
            False if no proposer is known or its queue is full: submit again later.

        Raises:
            LocalProtocolError: larger than ``max_submission_bytes``, or empty.
        """
        self._wake()
        return self._running and self._member.submit(data, count, self._loop.time())

    def ask_barrier(self) -> int:
        """Ask for a read barrier; return the number that ``barrier`` has to reach.

        All who ask in one iteration of the loop share a round. The contract is the log's.
        """
        self._wake()
        return self._member.ask_barrier(self._loop.time())

    @property
    def barrier(self) -> Barrier:
        """The newest read barrier that there is."""
        return self._member.barrier

    def drop_barriers(self) -> None:
        """Nobody waits for a barrier any more."""
        self._member.drop_barriers()

    def trim(self, position: int) -> None:
        """Give up the log up to ``position``, but for what is kept for members that come back.

        What any member has yet to flush is kept for it, up to ``log_retention_bytes``: whoever lags
        behind that is given up, and needs a copy. A witness keeps so much always, since whoever
        makes a copy can ask the members with a database only to keep their logs.

        Raises:
            LocalProtocolError: not all of it is committed.
        """
        if position > self.commit_position:
            raise LocalProtocolError(f"trim to {position} beyond {self.commit_position}")
        needed_by_nobody = min(position, self._member.restart_position)
        if not self._config.witness:
            self._writer.trim(needed_by_nobody, 0)
        if self._config.witness or position > needed_by_nobody:
            self._writer.trim(position, self._config.limits.log_retention_bytes)

    @property
    def commit_position(self) -> int:
        """Entries up to here are in the order for good and can be read here."""
        return self._member.commit_position

    @property
    def flushed_position(self) -> int:
        """The log is on this member's disk up to here."""
        return self._member.flushed_position

    async def begin_after(self, base: LogBase) -> None:
        """Drop the log and begin anew after a position that is committed; term and vote stay.

        Raises:
            StorageError, OSError, TlsError: it can't be done; ``on_failure`` has been called.
        """
        await self.stop()
        try:
            await self._loop.run_in_executor(None, reset_log, self._config, base)
            await self.start()
        except (StorageError, OSError, TlsError) as error:
            self._running = True  # it must not end in a member that is deaf
            self._fail(error)
            raise

    @property
    def term(self) -> int:
        """The highest term seen."""
        return self._member.term

    @property
    def proposer(self) -> str | None:
        """The member that orders entries, None if not known."""
        return self._member.proposer

    @property
    def role(self) -> Role:
        """The role of this member at the moment."""
        return self._member.role

    def status(self) -> dict[str, int | float | str | None]:
        """Return positions, roles and counters, for people and metrics."""
        status = log_status(self._member, self._writer, self._peers, primary=self.primary)
        return {**status, "log_bytes": self.extent.size_bytes}

    # ---- inputs ----------------------------------------------------------------------------

    def _receive(self, peer: str, message: Message) -> None:
        match message:
            case SplitMessage():
                self.splitter.receive(peer, message)
                return
            case _ if not self._running:
                return
            case PollRequest() if peer not in self.membership.names:  # [V7]
                self._peers.send([(peer, PollReply(message.number, b""))])
                return
            case PollRequest() | PollReply():
                self.polls.receive(peer, message)
                return
            case Change() if not self._peers.fit(peer, message):
                return
        try:
            self._member.receive(peer, message, self._loop.time())
        except LocalProtocolError as error:
            self._fail(error)
        self._wake()

    def _link_up(self, peer: str) -> None:
        self._news.link_up(peer)
        self.polls.links[peer] += 1
        self._wake()

    def _peer_ended(self, peer: str) -> None:
        self._member.ended(peer, self._loop.time())
        self._wake()

    def _persisted(self, ticket: int) -> None:
        self._member.persisted(ticket, self._loop.time())
        self._wake()

    def _trimmed(self, position: int) -> None:
        self._member.trim(position)

    def _fetched(self, fetch: Fetch, done: asyncio.Future[tuple[Block, ...]]) -> None:
        error = done.exception()
        if not self._running:
            return
        if isinstance(error, StorageDamaged):
            self.reader.damaged(error.position)
            return
        if isinstance(error, StorageError):
            self._fail(error)
            return
        self._member.fetched(fetch, done.result(), self._loop.time())
        self._wake()

    def _mended(self) -> None:
        self.reader.mended()
        self._tell_commits()

    def _tell_commits(self) -> None:
        for listener in self._listeners:
            listener.entries_committed()

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._deadline_s():
            self._member.tick(now)
            self._component.judge()
            self._wake()
        else:
            self._alarm.set(self._deadline_s())

    # ---- who belongs to the log --------------------------------------------------------------

    @property
    def abstains(self) -> bool:
        """This member waits for all of those with whom it founds the herd."""
        return self._member.abstains

    @property
    def membership(self) -> Membership:
        """The members that vote and that are fed, by the newest entry of this member's log."""
        return self._member.membership

    @property
    def peers(self) -> Peers:
        """The other members."""
        return self._peers

    @property
    def reads_only(self) -> bool:
        """Whether this member is a reader: by the log, or, until that names it, as configured."""
        return self._peers.reads_only

    @property
    def primary(self) -> bool:
        """Whether this member is in the primary component: elsewhere nothing can be ordered."""
        return self._running and self._component.primary

    @property
    def secondary_s(self) -> float:
        """How long this member has been outside the primary component."""
        return self._component.secondary_s

    def change_membership(
        self, join: Member | None = None, leave: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Ask for a change of the membership; may be lost: ask until ``membership`` says so.

        Who is to leave is named with its disk: a successor under its name is not meant.
        """
        judges = self._running and self._member.role is Role.PROPOSER
        if judges and not self._peers.fit(self._config.name, Change(join)):
            return
        if self._running:
            self._member.change_membership(join, leave)
            self._wake()

    # ---- outputs ---------------------------------------------------------------------------

    def _wake(self) -> None:
        """Flush when everything that this iteration of the loop brings has been taken in."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._running:
            return
        try:
            self._carry_out()
        except (StorageError, LocalProtocolError) as error:
            self._fail(error)
            return
        self._alarm.set(self._deadline_s())
        self._report()

    def _carry_out(self) -> None:
        """Do what the core asks for."""
        written = True
        self._member.flush_first = self._writer.pace.fast
        while written:
            self._member.collect = self._collector.collects()
            effects = self._member.take_effects()
            self._peers.send(effects.send)
            if effects.mend:
                self._writer.mend(effects.mend, self._mended)
            for fetch in effects.fetch:
                read = partial(self._storage.read, fetch.first, fetch.max_bytes)
                reading = self._loop.run_in_executor(None, read)
                reading.add_done_callback(partial(self._fetched, fetch))
            persist = effects.persist
            written = persist is not None and self._writer.write(persist)
            if persist is not None and written:
                self._member.persisted(persist.ticket, self._loop.time())

    def _deadline_s(self) -> float:
        member = self._member
        deadline_s = member.deadline_s
        collects = member.collect and member.submissions_wait
        return min(deadline_s, self._collector.due_s) if collects else deadline_s

    def _report(self) -> None:
        """Tell the caller what is new, once everything urgent is under way."""
        self._peers.note_membership()
        if self._news.proposer():
            self._component.judge()
            for listener in self._listeners:
                listener.proposer_changed()
        if not self._component.primary or self._member.lonely:
            self._component.judge()
        if self._news.behind():
            for listener in self._listeners:
                listener.left_behind()
        if not self._member.incomplete:
            self.whole.set()
        if self._news.commits():
            self._tell_commits()
        if self._news.barrier():
            for listener in self._listeners:
                listener.barrier_reached()

    def _retire(self) -> None:
        """Take no part any more."""
        self._running = False
        self._component.leave()

    def _fail(self, error: Exception) -> None:
        """Fall silent and say why."""
        if self._running:
            self._running = False
            _log.critical("log.failed", error=str(error), kind=type(error).__name__)
            self._on_failure(error)
