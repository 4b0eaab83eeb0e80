"""The source that a server that is made anew is filled from: a dump of a partner, or a snapshot.

A small file beside the copy to be, written when all that it tells of is whole. It survives the
death of the sidecar, so that loading can be begun again without a second dump.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pgherd_sidecar.env.processes.programs import ProgramError
from pgherd_sidecar.env.storage import durable

ROWS = "rows"
"""The dump, as ``pg_dump`` makes directories."""
ROLES = "roles.sql"
_FILE = "carried.json"


@dataclass(frozen=True, slots=True)
class Carried:
    """Where rows and definitions are, and what they do not say themselves.

    Attributes:
        gid: everything up to here is in them, and nothing after.
        encoding, collate, ctype: of the server they are from.
        archive: definitions, and of a dump the rows, as ``pg_restore`` reads them.
        roles: a script that makes them.
        shared: what every member has of roles, memberships and settings, as key and attributes
            (``pg/sql/046_roles.sql``).
        role_limits: names of the nodes on which a role may log in, for those that are limited.
        snapshot: the directory of the snapshot whose rows they are; None for a dump.
        local_tables: names of tables that the members keep for themselves.
        sequences: what users mean by INCREMENT and START, by name; of a snapshot none, since its
            sequences are as users made them.
        sizes: bytes of each table's rows, by name.
        skipped: GIDs of entries that have no effect on them, though others may have applied them.
        columns: those of each replicated table in order, by its name.
        long_commands: those under way, see ``pg/sql/055_long_commands.sql``; what they make is in
            the dump only where its source had made it.
    """

    gid: int
    encoding: str
    collate: str
    ctype: str
    archive: str
    roles: str
    shared: list[list[Any]]
    role_limits: dict[str, list[str]]
    snapshot: str | None = None
    local_tables: list[str] = field(default_factory=list)
    sequences: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    columns: dict[str, list[str]] = field(default_factory=dict)
    long_commands: list[dict[str, Any]] = field(default_factory=list)

    def save(self, directory: Path) -> None:
        """Write it.

        Raises:
            OSError: the disk failed.
        """
        durable.replace(directory, _FILE, json.dumps(asdict(self)).encode())


def directory_of(copy: Path) -> Path:
    """Where the file is, and the dump: beside the copy, and removed together with it."""
    return copy.with_name(f"{copy.name}.source")


def prepare_directory(directory: Path) -> None:
    """Make the directory; what will be in it is nobody else's business.

    Raises:
        OSError: the disk failed.
    """
    directory.mkdir(mode=0o700)


def load_carried(directory: Path) -> Carried:
    """Read the file.

    Raises:
        ProgramError: it is not there any more, or is damaged.
    """
    try:
        fields: dict[str, Any] = json.loads((directory / _FILE).read_bytes())
        return Carried(**fields)
    except (OSError, ValueError, TypeError) as error:
        raise ProgramError(f"what was to be loaded is lost: {error}") from error
