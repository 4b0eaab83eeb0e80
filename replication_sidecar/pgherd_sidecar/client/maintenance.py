"""Answers of a sidecar about the herd's maintenance; ``routes`` has the questions."""

from pgherd_sidecar.client.answerbase import AnswerBase


class PartAnswer(AnswerBase):
    """One member in a run.

    Attributes:
        state: waiting, working, done, failed or cancelled.
        begun: when it was taken, in ISO 8601; None before.
        ended: when its outcome was told.
        seconds: from the one to the other, or until now.
        error: why it has failed; why it waits, where the member that is asked is the one.
    """

    member: str
    state: str
    begun: str | None = None
    ended: str | None = None
    seconds: float | None = None
    error: str = ""


class RunAnswer(AnswerBase):
    """One time that some maintenance is done.

    Attributes:
        schedule: whose time it is; empty if it was asked for once.
        created: when it was asked for, in ISO 8601.
    """

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


class ScheduleAnswer(AnswerBase):
    """Maintenance that is to be done again and again.

    Attributes:
        known: times up to this one were dealt with.
        coming: the next time; None if there is none.
        message: what became of the last time, if there was no run.
    """

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


class MaintenanceAnswer(AnswerBase):
    """All that is remembered: the newest run first."""

    runs: tuple[RunAnswer, ...] = ()
    schedules: tuple[ScheduleAnswer, ...] = ()


class BegunAnswer(AnswerBase):
    """A run or a schedule that has begun."""

    run: str = ""
    schedule: str = ""
    members: tuple[str, ...] = ()


class UnderWayAnswer(AnswerBase):
    """The work of a member at the moment, by its own word.

    Attributes:
        phase: ``drains``, ``works`` or ``catches up``.
        statement: the one that is executed.
        seconds: since it was taken.
    """

    run: str
    schedule: str = ""
    phase: str = ""
    statement: str = ""
    seconds: float = 0.0
