"""What a server that is made anew is filled with: a dump of a partner, or a snapshot.

A small file beside the copy to be, written when all that it tells of is whole. It survives the
death of the sidecar, so that loading can be begun again without a second dump.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pgherd_sidecar.agent.recovery.programs import ProgramError
from pgherd_sidecar.env import durable

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
        snapshot: the directory of the snapshot whose rows they are; None for a dump.
        local_tables: names of tables that the members keep for themselves.
        sequences: what users mean by INCREMENT and START, by name; of a snapshot none, since its
            sequences are as users made them.
        known_roles: names of roles that every member has; None if that is not known, as of an
            old snapshot: all that there are then count as such.
        memberships: role and member of each membership that every member has; None likewise.
        database_rights: grantee and privilege of each on the database that every member has; None
            likewise.
        sizes: bytes of each table's rows, by name.
        skipped: GIDs of entries that have no effect on them, though others may have applied them.
    """

    gid: int
    encoding: str
    collate: str
    ctype: str
    archive: str
    roles: str
    snapshot: str | None = None
    local_tables: list[str] = field(default_factory=list)
    sequences: dict[str, dict[str, int]] = field(default_factory=dict)
    known_roles: list[str] | None = None
    memberships: list[list[str]] | None = None
    database_rights: list[list[str]] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)

    def save(self, directory: Path) -> None:
        """Write it.

        Raises:
            OSError: the disk failed.
        """
        durable.replace(directory, _FILE, json.dumps(asdict(self)).encode())


def directory_of(copy: Path) -> Path:
    """Where the file is, and the dump: beside the copy, and removed together with it."""
    return copy.with_name(f"{copy.name}.source")


def prepare(directory: Path) -> None:
    """Make the directory; what will be in it is nobody else's business.

    Raises:
        OSError: the disk failed.
    """
    directory.mkdir(mode=0o700)


def load(directory: Path) -> Carried:
    """Read the file.

    Raises:
        ProgramError: it is not there any more, or is damaged.
    """
    try:
        fields: dict[str, Any] = json.loads((directory / _FILE).read_bytes())
        return Carried(**fields)
    except (OSError, ValueError, TypeError) as error:
        raise ProgramError(f"what was to be loaded is lost: {error}") from error
