"""The control file of a log: what cannot be told from the segments alone.

One JSON line and its CRC-32, replaced atomically. ``SegmentLog`` says what the fields mean for the
log; this module decides nothing.
"""

import json
from dataclasses import asdict, dataclass
from zlib import crc32

from pgherd_sidecar.core.consensus import Control, LogBase, Membership, RemoteProtocolError
from pgherd_sidecar.env.storage.disk import Directory
from pgherd_sidecar.env.storage.segment import StorageCorrupt, StorageFormat

NAME = "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFile:
    """The content.

    Attributes:
        control: the protocol's own part.
        base: what the log began after.
        end: where the log ended when this was written; it may have grown since.
        newest: first position of its newest segment, 0 if there was none.
        truncate_after: a truncation that was begun, None if none was.
    """

    control: Control
    base: LogBase
    end: int
    newest: int
    truncate_after: int | None


def save(directory: Directory, content: ControlFile) -> None:
    """Replace the control file, durably."""
    base = content.base
    fields = asdict(content.control) | {
        "end": content.end,
        "newest": content.newest,
        "truncate_after": content.truncate_after,
        "base_position": base.position,
        "base_term": base.term,
        "base_membership": base.membership.encode().decode(),
    }
    line = json.dumps(fields).encode()
    file = directory.create(NAME + ".new", 0)
    file.write(0, line + b"\n%08x\n" % crc32(line))
    file.sync()
    file.close()
    directory.replace(NAME + ".new", NAME)
    directory.sync()


def load(directory: Directory) -> ControlFile:
    """Return what was saved last.

    Raises:
        StorageCorrupt: it is damaged.
        StorageFormat: it is one of another version.
    """
    file = directory.open(NAME)
    data = file.read(0, file.size())
    file.close()
    line, _, check = data.partition(b"\n")
    if check != b"%08x\n" % crc32(line):
        raise StorageCorrupt("the control file is damaged")
    fields = json.loads(line)
    try:
        truncate_after, end = fields.pop("truncate_after"), fields.pop("end")
        newest = fields.pop("newest", 0)
        membership = Membership.decode(fields.pop("base_membership").encode())
        base = LogBase(fields.pop("base_position"), fields.pop("base_term"), membership)
        control = Control(**fields)
    except (KeyError, TypeError, RemoteProtocolError) as error:
        raise StorageFormat("the control file") from error
    return ControlFile(
        control=control, base=base, end=end, newest=newest, truncate_after=truncate_after
    )
