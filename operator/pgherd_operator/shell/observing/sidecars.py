"""What the operator asks of the sidecars: an interface to their admin API, and its answers.

``status`` is asked of every member; requests about membership go to one in the primary component,
which decides them through its log. Answers are parsed tolerantly: fields may be added.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from pgherd_operator.core.observed import MAINTENANCE, Incident, Report, View

ANSWER_S = 2.0


class SidecarError(Exception):
    """A sidecar did not answer, or refused; the message is one line."""


class SidecarRefusedError(SidecarError):
    """A sidecar will not do this, however often it is asked.

    Attributes:
        reason: in its own words.
    """

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(f"{who}: {reason}")
        self.reason = reason


class Sidecars(Protocol):
    """The sidecars of one herd, by the numbers of their members."""

    async def prepare(self) -> None:
        """Get what it takes to ask them; how long that takes says nothing about any of them.

        Raises:
            SidecarError: nobody can be asked yet.
        """

    async def status(self, number: int) -> Mapping[str, Any]:
        """Return the answer of ``GET /status``.

        Raises:
            SidecarError: there is none.
        """

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = ANSWER_S
    ) -> Mapping[str, Any]:
        """POST a request; returns when it is accepted, which may be before it is done.

        Raises:
            SidecarRefusedError: it is refused.
            SidecarError: not now, or nobody answers.
        """


class _Difference(BaseModel):
    model_config = ConfigDict(extra="ignore")

    kind: str
    table: str
    index: str
    members: tuple[str, ...]
    majority: bool
    first_gid: int

    def text(self) -> str:
        """In words, without values of rows: a condition is read by more people than they are."""
        names = ", ".join(self.members)
        if self.kind == "index":
            return f"index {self.index} differs from its table on {names}"
        what = f"table {self.table}" if self.kind == "rows" else "which tables there are"
        who = f"{names} differs from the others" if self.majority else f"{names} differ"
        return f"{what}: {who}, first seen at GID {self.first_gid}"


class _Scrub(BaseModel):
    model_config = ConfigDict(extra="ignore")

    differences: tuple[_Difference, ...] = ()


class _Status(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    cluster_id: str
    state: str
    disk_id: str = ""
    component: str = ""
    reason: str | None = None
    term: int = 0
    proposer: str | None = None
    gid: int | None = None
    lag_bytes: int | None = None
    view: View | None = None
    departed: bool = False
    capture_off: tuple[str, ...] = ()
    scrub: _Scrub | None = None
    incidents: tuple[Incident, ...] = ()
    held: str | None = None
    maintenance: Mapping[str, Any] | None = None
    databases: tuple[Mapping[str, Any], ...] = ()


def parse(number: int, answer: Mapping[str, Any]) -> Report:
    """Make a report of an answer.

    Raises:
        SidecarError: it is not one.
    """
    try:
        status = _Status.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SidecarError(f"member {number}: {where}: {first['msg']}") from error
    return Report(
        number=number,
        cluster_id=status.cluster_id,
        disk_id=status.disk_id,
        state=status.state,
        primary=status.component == "primary",
        reason=status.reason,
        term=status.term,
        proposer=status.proposer,
        gid=status.gid,
        lag_bytes=status.lag_bytes,
        departed=status.departed,
        capture_off=status.capture_off,
        differences=None
        if status.scrub is None
        else tuple(one.text() for one in status.scrub.differences),
        incident=status.incidents[-1] if status.incidents else None,
        held=status.held,
        maintained=status.maintenance is not None or status.state == MAINTENANCE,
        knows_databases=bool(status.databases),
        view=status.view,
    )
