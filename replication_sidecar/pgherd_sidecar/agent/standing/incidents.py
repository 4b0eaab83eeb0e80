"""Incidents that stopped this member's database, and how they ended: remembered for good.

An *incident* begins when the node can't go on from its own database, or is rebuilt for another
reason, and ends when it has caught up again or the rebuild was given up. A quick rebuild hides
nothing: the incident stays in ``incidents.json``, of which the newest ``KEPT`` are kept, with sums
of all there ever were.

Filled by ``fitness``; told by its status. Survives a restart: all of it. A file that is damaged
counts as none, and one that can't be written stops nobody.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from pgherd_sidecar.agent.admin.port import StatusValue
from pgherd_sidecar.agent.base.errors import (
    DivergedError,
    Failure,
    RebuildNeededError,
    UnreadableError,
)
from pgherd_sidecar.env.storage import durable

log = structlog.get_logger()

FILE = "incidents.json"
KEPT = 100
TOLD = 10
"""In the status, newest last."""
_TEXT_MAX = 500


@dataclass(frozen=True, slots=True)
class Incident:
    """One of them; texts are empty where nothing is known.

    Attributes:
        number: counts all incidents of this member, from 1.
        at, last_at: when it began, and when it was last met: each restart may meet it again.
        kind: diverged, left behind, unreadable, requested.
        reason: in words.
        times: how often it was met.
        gid, sqlstate, work, statement, table, key, row: see ``Failure``.
        cure: rebuild, or none: it waits for an administrator.
        ended_at, outcome: rebuilt, given up: why, or went on; empty while it lasts.
    """

    number: int
    at: str
    last_at: str
    kind: str
    reason: str
    times: int = 1
    gid: int = 0
    sqlstate: str = ""
    work: str = ""
    statement: str = ""
    table: str = ""
    key: str = ""
    row: str = ""
    cure: str = "none"
    ended_at: str = ""
    outcome: str = ""


class Incidents:
    """The incidents of one member.

    Args:
        directory: the sidecar's.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._list: list[Incident] = []
        self._divergences: dict[str, int] = {}
        self._rebuilds: dict[str, int] = {}
        self._load()

    @property
    def open(self) -> Incident | None:
        """The one that lasts."""
        return self._list[-1] if self._list and not self._list[-1].ended_at else None

    def begin(self, cause: RebuildNeededError, *, rebuilt: bool) -> None:
        """The node can't go on from its own database.

        Args:
            cause: why.
            rebuilt: a rebuild has been begun.
        """
        failure = cause.failure if isinstance(cause, DivergedError) else None
        kind = "left behind"
        if isinstance(cause, DivergedError):
            kind = "diverged"
        elif isinstance(cause, UnreadableError):
            kind = "unreadable"
        self._begin(kind, str(cause), failure, "rebuild" if rebuilt else "none")

    def request(self) -> None:
        """An administrator has asked for a rebuild, of a node that may be well."""
        if self.open is not None:
            self._list[-1] = replace(self._list[-1], cure="rebuild")
            self._save()
        else:
            self._begin("requested", "an administrator asked for a rebuild", None, "rebuild")

    def cure(self, *, rebuilt: bool) -> None:
        """It has been decided how the node goes on: by a rebuild, or not, or from where it is."""
        if self.open is not None:
            self._list[-1] = replace(self._list[-1], cure="rebuild" if rebuilt else "none")
            self._save()

    def end(self, trouble: str = "") -> None:
        """The node has caught up.

        Args:
            trouble: why its rebuild was given up instead.
        """
        incident = self.open
        if incident is None:
            return
        outcome = "rebuilt" if incident.cure == "rebuild" else "went on"
        if trouble:
            outcome = f"given up: {trouble}"[:_TEXT_MAX]
        if incident.cure == "rebuild":
            label = "given_up" if trouble else "done"
            self._rebuilds[label] = self._rebuilds.get(label, 0) + 1
        self._list[-1] = replace(incident, ended_at=_now(), outcome=outcome)
        self._save()

    def of(self, gid: int) -> list[StatusValue]:
        """Those that this entry was the cause of."""
        return [asdict(one) for one in self._list if one.gid == gid]

    def status(self) -> dict[str, StatusValue]:
        """Return what people want to see of them."""
        told: list[StatusValue] = [asdict(one) for one in self._list[-TOLD:]]
        return {
            "incidents": told,
            "divergences_total": dict(self._divergences),
            "rebuilds_total": dict(self._rebuilds),
        }

    def _begin(self, kind: str, reason: str, failure: Failure | None, cure: str) -> None:
        now, known = _now(), self.open
        found = Incident(
            number=self._list[-1].number + 1 if self._list else 1,
            at=now,
            last_at=now,
            kind=kind,
            reason=reason[:_TEXT_MAX],
            cure=cure,
        )
        if failure is not None:
            found = replace(
                found,
                gid=failure.gid,
                sqlstate=failure.sqlstate,
                work=failure.work,
                statement=failure.statement,
                table=failure.table[:_TEXT_MAX],
                key=failure.key,
                row=failure.row[:_TEXT_MAX],
            )
        same = known is not None and (known.kind, known.gid, known.sqlstate, known.reason) == (
            found.kind,
            found.gid,
            found.sqlstate,
            found.reason,
        )
        if known is not None and same:
            again = replace(known, last_at=now, times=known.times + 1, cure=cure)
            self._list[-1] = again
        else:
            if known is not None:
                self._list[-1] = replace(known, ended_at=now, outcome="another one followed")
            self._list = [*self._list, found][-KEPT:]
            if kind == "diverged":
                label = failure.work if failure is not None and failure.work else "chain"
                self._divergences[label] = self._divergences.get(label, 0) + 1
        self._save()

    def _save(self) -> None:
        content = {
            "divergences": self._divergences,
            "rebuilds": self._rebuilds,
            "incidents": [asdict(one) for one in self._list],
        }
        try:
            durable.replace(self._directory, FILE, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            log.error("incidents.unwritten", error=str(error))

    def _load(self) -> None:
        try:
            content = json.loads((self._directory / FILE).read_bytes())
            self._list = [_incident(one) for one in content["incidents"]][-KEPT:]
            self._divergences = _sums(content["divergences"])
            self._rebuilds = _sums(content["rebuilds"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._list, self._divergences, self._rebuilds = [], {}, {}


def _incident(said: Mapping[str, Any]) -> Incident:
    """Read one; what a later version has added is left out."""
    names = {one.name for one in fields(Incident)}
    return Incident(**{name: value for name, value in said.items() if name in names})


def _sums(said: Mapping[str, Any]) -> dict[str, int]:
    return {str(label): int(count) for label, count in said.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
