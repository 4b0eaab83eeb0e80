"""The progress of a rebuild: a small file on the disk of the joiner, replaced as a whole.

The phases, each of which may be begun again from its start after a crash::

    idle        nothing to do
    copying     a partner is chosen, its checkpoint fetched, its database copied or dumped
    loading     what was dumped, or is in a snapshot, fills a fresh server
    settling    the copy is whole; it becomes this member's own (identity, sequences)
    installing  server stopped, directories exchanged, checkpoint put into place
    starting    the server starts and catches up from the log; the old directory is still there

Written by ``rebuild`` only. The partner remembers nothing but a lease on its log.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from pgherd_sidecar.env.storage import durable

_FILE = "rebuild.json"


class Phase(StrEnum):
    """How far a rebuild is."""

    IDLE = "idle"
    COPYING = "copying"
    LOADING = "loading"
    SETTLING = "settling"
    INSTALLING = "installing"
    STARTING = "starting"


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """Content of the file.

    Attributes:
        reason: why the node is rebuilt.
        wanted: the partner that the administrator named.
        rate_bytes_s: how fast at most, if the administrator said so.
        partner: the partner of the present copy.
        copy: name of the directory with the copy, beside the server's.
        fingerprint: how the other members hash keys; the copy has to hash them so, too.
        log_lost: what follows in this member's log is nowhere any more: the log begins anew, too.
        failures: of this rebuild.
        begun: when rebuilds were begun, in seconds since the epoch, newest last; none of those
            that an administrator asked for.
        refusal: why no further attempt would help; empty if one may.
        given_up: it failed, or was necessary, too often: only an administrator begins another.
    """

    phase: Phase = Phase.IDLE
    reason: str = ""
    wanted: str | None = None
    rate_bytes_s: int | None = None
    partner: str | None = None
    copy: str | None = None
    fingerprint: str = ""
    log_lost: bool = False
    failures: int = 0
    begun: tuple[float, ...] = ()
    refusal: str = ""
    given_up: bool = False

    def save(self, directory: Path) -> None:
        """Replace the file.

        Raises:
            OSError: it can't be written.
        """
        durable.replace(directory, _FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())


def load_progress(directory: Path) -> RebuildProgress:
    """Read the file; one that is not there or damaged means that nothing was going on.

    It is replaced atomically, so damage is the disk's; a rebuild that is forgotten is begun anew
    when the cause is met again.
    """
    try:
        fields = json.loads((directory / _FILE).read_bytes())
        phase, begun = Phase(fields.pop("phase")), tuple(fields.pop("begun"))
        return RebuildProgress(phase=phase, begun=begun, **fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return RebuildProgress()
