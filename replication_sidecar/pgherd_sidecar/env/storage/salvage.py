"""What of a log's segments can be used when it is opened: all of it, but for a torn tail or damage.

Three things may be wrong with a segment file, and mean different things:

* a *torn tail*, what was being written when the process ended: nobody was told of it, it is cut
* a *hole*, a block whose data are bad and whose place in the order is known: it stays, is found
  again whenever it is read, and is mended from the others (`Segment.mend`)
* a *loss*: from somewhere on it can't be told what the log was, though more was flushed. Then the
  log ends there, and what this member has promised is not in it any more. The oldest segment is
  none, if it is known to be committed: then the log begins behind it

It changes nothing on disk.
"""

from dataclasses import dataclass, field
from itertools import zip_longest

from pgherd_sidecar.core.consensus import Block, LogBase, LogIndex
from pgherd_sidecar.env.storage.disk import Directory
from pgherd_sidecar.env.storage.segment import Segment, StorageCorrupt

SUFFIX = ".seg"


@dataclass(slots=True)
class Survey:
    """What was found.

    Attributes:
        segments: those that can be used, oldest first.
        surplus: names of the files that can't, or are of no use any more, oldest first.
        index: of what can be used; a torn tail is not in it.
        recent: the newest run of blocks without a hole.
        hole: the first position of a hole in the newest segment, 0 if none is known.
        lost: more was flushed than `index` tells.
    """

    index: LogIndex
    segments: list[Segment] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    recent: list[Block] = field(default_factory=list)
    hole: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What the control file tells of the log.

    Attributes:
        committed: up to here it is in the order for good;
        end: it went up to here at least;
        newest: where a segment began that may hold more, 0 for none.
        truncating: a truncation to this position was interrupted, if one was.
    """

    committed: int = 0
    end: int = 0
    newest: int = 0
    truncating: int | None = None


def survey(directory: Directory, base: LogBase, known: Known) -> Survey:
    """Look at all segments, and read the newest one.

    Args:
        directory: of the log.
        base: what the log began after.
        known: what there has to be.

    Raises:
        StorageFormat: another version made a segment.
    """
    names = [name for name in directory.names() if name.endswith(SUFFIX)]
    if names and _first(names[0]) <= base.position:  # a reset was interrupted
        return Survey(LogIndex.beginning(base), surplus=names)
    truncating = known.truncating
    kept = [name for name in names if truncating is None or _first(name) <= truncating]
    # the oldest is emptied, not removed
    segments = _usable(directory, kept or names[:1], known.committed)
    used = {segment.name for segment in segments}
    surplus = [name for name in names if name not in used]
    if not segments:
        found = Survey(LogIndex.beginning(base), surplus=surplus)
    else:
        found = _read_newest(segments)
        found.surplus = surplus
        if truncating is None or truncating > found.index.last:
            last = segments[-1]
            found.lost = last.flushed_after(found.index.last + 1, last.end)
    found.lost |= found.index.last < known.end or not used.issuperset(kept[-1:])
    found.lost |= known.newest > (segments[-1].first if segments else 0)
    return found


def _usable(directory: Directory, names: list[str], committed: int) -> list[Segment]:
    """Look at the segments up to one that is damaged, or misses the one before it.

    Without the oldest, if that is damaged and all of it is committed: it may be trimmed.
    """
    segments: list[Segment] = []
    for name, after in zip_longest(names, names[1:]):
        try:
            segment = Segment(name, directory)
        except StorageCorrupt:
            if name == names[0] and after and _first(after) - 1 <= committed:
                continue
            break
        if segments and segment.previous != segments[-1].first:
            segment.close()
            break
        if segments:
            segments[-1].close()
        segments.append(segment)
    return segments


def _read_newest(segments: list[Segment]) -> Survey:
    found = Survey(segments[-1].before, segments)
    for block, good in segments[-1].load():
        found.index.append(block)
        if good:
            found.recent.append(block)
        else:
            found.recent.clear()
            found.hole = found.hole or block.first
    found.index.trim(segments[0].first - 1)
    return found


def _first(name: str) -> int:
    return int(name.removesuffix(SUFFIX))
