"""What stops an import. The message is one line that says what to do."""

from collections.abc import Sequence
from dataclasses import dataclass


class ImportFailed(Exception):
    """It can't go on as things are; what was done stays, and the command can be repeated."""


class HerdRefused(ImportFailed):
    """The herd says no, for good."""


class TakenOver(ImportFailed):
    """Another process has begun to run the same import."""


class CutOverDone(ImportFailed):
    """The cut-over was committed: the source is never to take writes again."""

    def __init__(self) -> None:
        super().__init__(
            "the cut-over is done, and the herd is in use: nothing is taken back; `pgherd import"
            " cut-over` ends what is left"
        )


class Changed(ImportFailed):
    """The source is not what it was when the import began."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a source can't be taken over, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


class Unfit(ImportFailed):
    """There are reasons, and nothing of an import was made.

    Args:
        reasons: against it.
        made: what there is nevertheless.
    """

    def __init__(self, reasons: Sequence[Reason], made: str = "nothing was made") -> None:
        super().__init__(f"{len(reasons)} reasons")
        self.reasons = tuple(reasons)
        self.made = made
