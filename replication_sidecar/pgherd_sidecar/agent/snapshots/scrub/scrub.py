"""The scrub of one member: what it hears, when it asks, and what it makes known.

It orders requests while this member is the proposer. Nothing is rebuilt because of what is found:
an administrator has to look.
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.apply.applier import Applier
from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.snapshots.scrub.connection import ScrubConnection
from pgherd_sidecar.agent.snapshots.scrub.planning import ScrubPlanner
from pgherd_sidecar.agent.snapshots.scrub.reading import PartReader, overloaded
from pgherd_sidecar.agent.snapshots.scrub.sending import ScrubSender
from pgherd_sidecar.core.commit.path import CommitPath
from pgherd_sidecar.core.replication.entries import Marker
from pgherd_sidecar.core.replication.scrub.ledger import Conclusion, Ledger
from pgherd_sidecar.core.replication.scrub.messages import Answer, decode_message
from pgherd_sidecar.core.replication.scrub.pacing import rest_s
from pgherd_sidecar.core.replication.scrub.saved import Saved, summary
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.env.storage import durable

log = structlog.get_logger()

_FILE = "scrub.json"
_PACE_S = 1.0
_SAVE_S = 5.0
_ROUND_S = 45.0
"""A round that some have not answered after so long is concluded without them."""
_IDLE_S = 30.0
"""So long it waits for a moment in which nothing is under way."""


class Scrub:
    """The scrub of one member, for a session of the replica.

    Args:
        config: this member's.
        host: its log.
        applier: takes the snapshots, between what is applied.
        path: the commit path: is anything under way?
        state: what follows from the log, as far as it was delivered.
        ready: whether this member takes writes.
    """

    def __init__(
        self,
        config: NodeConfig,
        host: LogHost,
        *,
        applier: Applier,
        path: CommitPath,
        state: ReplicatedState,
        ready: Callable[[], bool],
    ) -> None:
        self._config = config
        self._asked = config.scrub
        self._host = host
        self._applier = applier
        self._path = path
        self._state = state
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._ledger = ledger = Ledger(self._load())
        self._connection = connection = ScrubConnection(config)
        self._sender = sender = ScrubSender(host)
        self._planner = ScrubPlanner(config.scrub.interval_s, ledger, connection)
        self._reader = PartReader(
            config, host, path=path, state=state, connection=connection, sender=sender
        )
        self._news = asyncio.Event()
        self._closed_s = self._opened_s = self._saved_s = self._loop.time()
        self._unsaved = False
        self._busy_since_s: float | None = None

    # ---- log ---------------------------------------------------------------------------------

    def take_marker(self, gid: int, marker: Marker) -> bool:
        """Take a marker that was delivered; False if it is none of ours."""
        message = decode_message(marker)
        if message is None:
            return False
        if not isinstance(message, Answer) or message.member == self._config.number:
            self._sender.note_delivered(message)
        if not self._asked.interval_s:
            return True
        if isinstance(message, Answer):
            self._conclude(self._ledger.take_answer(message))
            return True
        concluded = self._ledger.take_request(gid, message, self._members())
        if concluded is None:
            return True
        self._opened_s = self._loop.time()
        self._conclude(concluded)
        if self._ready():
            self._applier.queue(partial(self._reader.begin_answer, message))
        return True

    def _members(self) -> Collection[int]:
        return self._state.members

    def _conclude(self, concluded: list[Conclusion]) -> None:
        if not self._ledger.is_open:
            self._closed_s = self._loop.time()
        self._unsaved = True
        for one in concluded:
            _tell(one)
            self._saved_s = 0.0
        self._news.set()

    # ---- asking ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for one part after the other whenever this member is the proposer."""
        while self._asked.interval_s:
            self._news.clear()
            await self._save()
            pause_s = _PACE_S
            if self._may_ask():
                pause_s = await self._ask()
            try:
                async with asyncio.timeout(max(pause_s, 0.01)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _may_ask(self) -> bool:
        if self._ledger.is_open and self._loop.time() >= self._opened_s + _ROUND_S:
            self._conclude(self._ledger.close())
        return (
            not self._ledger.is_open
            and self._ready()
            and len(self._members()) > 1
            and self._host.primary
            and self._host.proposer == self._config.name
        )

    async def _ask(self) -> float:
        """Order what is due; return for how long there is nothing to do, at most."""
        work_s = self._ledger.work_s + self._planner.planned_s
        rested_s = self._closed_s + rest_s(work_s, self._asked.share) - self._loop.time()
        if rested_s > 0:
            return min(rested_s, _PACE_S)
        if not self._quiet():
            return _PACE_S / 10
        request = await self._planner.next_request()
        if request is None:
            return _PACE_S
        await self._sender.send(request)
        return 0.0

    def _quiet(self) -> bool:
        """Nothing is under way, or something has been all the time."""
        now_s, too_much = self._loop.time(), overloaded(self._path)
        if self._path.idle or too_much:
            self._busy_since_s = None
            return not too_much
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        return now_s >= self._busy_since_s + _IDLE_S

    # ---- life --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give everything back."""
        await self._reader.close()
        await self._connection.disconnect()
        self._saved_s = 0.0
        await self._save()

    def _load(self) -> Saved:
        try:
            content = (self._config.data_dir / _FILE).read_bytes()
            return msgspec.json.decode(content, type=Saved)
        except FileNotFoundError:
            return Saved()
        except (msgspec.DecodeError, OSError) as error:
            log.warning("scrub.begins_anew", reason=str(error))
            return Saved()

    async def _save(self) -> None:
        now_s = self._loop.time()
        if not self._unsaved or now_s < self._saved_s + _SAVE_S:
            return
        self._unsaved, self._saved_s = False, now_s
        content = msgspec.json.encode(self._ledger.saved)
        try:
            await asyncio.to_thread(durable.replace, self._config.data_dir, _FILE, content)
        except OSError as error:  # a full disk: it is no promise
            log.warning("scrub.not_saved", reason=str(error))

    def status(self) -> dict[str, StatusValue]:
        """Return what is known; numbers are metrics, too."""
        saved = self._ledger.saved
        return {
            "scrub": {
                "interval_s": self._asked.interval_s,
                "share": self._asked.share,
                "table": saved.position.table,
                "began": _time(saved.began_s),
                "finished": _time(saved.finished_s),
                "not_answering": sorted(self._ledger.silent),
                "differences": summary(saved),
            },
            "scrub_passes": saved.passes,
            "scrub_rows": saved.rows,
            "scrub_skipped": saved.skipped,
            "scrub_differences": len(saved.differences),
            "scrub_last_pass_time_s": saved.finished_s,
            "scrub_work_s": round(self._connection.work_s, 3),
        }


def _tell(one: Conclusion) -> None:
    """Log a conclusion; keys are values of rows, and are not for the log."""
    subject, found = one.subject, one.difference
    table, index = (subject.table, subject.index) if subject is not None else ("", "")
    match one.what:
        case "different" if found is not None:
            log.error(
                "scrub.different",
                table=table,
                index=index,
                members=list(found.members),
                majority=found.majority,
                keys=len(found.keys) + found.more,
                gid=one.gid,
                remedy="run verify, then rebuild the member that is wrong",
            )
        case "mended":
            log.info("scrub.mended", table=table, index=index, gid=one.gid)
        case "unconfirmed":
            log.warning("scrub.unconfirmed", table=table, gid=one.gid)
        case "skipped":
            log.warning("scrub.skipped", table=table, index=index, gid=one.gid, reason=one.note)
        case _:
            log.info("scrub.passed", gid=one.gid)


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
