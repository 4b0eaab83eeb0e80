"""Answers of a sidecar about the herd's maintenance; ``routes`` has the questions."""

from pydantic import BaseModel, ConfigDict


class PartAnswer(BaseModel):
    """One member in a run.

    Attributes:
        state: waiting, working, done, failed or cancelled.
        begun: when it was taken, in ISO 8601; None before.
        ended: when its outcome was told.
        seconds: from the one to the other, or until now.
        error: why it has failed; why it waits, where the member that is asked is the one.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    member: str
    state: str
    begun: str | None = None
    ended: str | None = None
    seconds: float | None = None
    error: str = ""


class RunAnswer(BaseModel):
    """One time that some maintenance is done.

    Attributes:
        schedule: whose time it is; empty if it was asked for once.
        created: when it was asked for, in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    schedule: str = ""
    created: str
    statements: tuple[str, ...]
    one_by_one: bool = False
    drain: bool = False
    cancelled: bool = False
    parts: tuple[PartAnswer, ...]

    @property
    def over(self) -> bool:
        """Nothing waits, and nothing is under way."""
        return all(one.state not in ("waiting", "working") for one in self.parts)

    @property
    def succeeded(self) -> bool:
        """It was done on all members."""
        return all(one.state == "done" for one in self.parts)


class ScheduleAnswer(BaseModel):
    """Maintenance that is to be done again and again.

    Attributes:
        known: times up to this one were dealt with.
        coming: the next time; None if there is none.
        message: what became of the last time, if there was no run.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schedule: str
    cron: str
    time_zone: str
    statements: tuple[str, ...]
    members: tuple[str, ...] = ()
    one_by_one: bool = False
    drain: bool = False
    known: str
    coming: str | None = None
    message: str = ""


class MaintenanceAnswer(BaseModel):
    """All that is remembered: the newest run first."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    runs: tuple[RunAnswer, ...] = ()
    schedules: tuple[ScheduleAnswer, ...] = ()


class BegunAnswer(BaseModel):
    """A run or a schedule that has begun."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str = ""
    schedule: str = ""
    members: tuple[str, ...] = ()


class UnderWayAnswer(BaseModel):
    """The work of a member at the moment, by its own word.

    Attributes:
        phase: ``drains``, ``works`` or ``catches up``.
        statement: the one that is executed.
        seconds: since it was taken.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    schedule: str = ""
    phase: str = ""
    statement: str = ""
    seconds: float = 0.0
