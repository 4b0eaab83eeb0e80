"""What of a log's segments can be used when it is opened: all of it, but for a torn tail or damage.

Three things may be wrong with a segment file, and mean different things:

* a *torn tail*, what was being written when the process ended: nobody was told of it, it is cut
* a *hole*, a block whose data are bad and whose place in the order is known: it stays, is found
  again whenever it is read, and is mended from the others (`Segment.mend`)
* a *loss*: from somewhere on it can't be told what the log was, though more was flushed. Then the
  log ends there, and what this member has promised is not in it any more

Called by `SegmentLog`, which does what follows from it. Changes nothing on disk.
"""

from dataclasses import dataclass, field

from pgherd_sidecar.core.log import Block, LogBase, LogIndex
from pgherd_sidecar.env.disk import Directory
from pgherd_sidecar.env.segment import Segment, StorageCorrupt

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


def survey(
    directory: Directory, base: LogBase, end: int, newest: int, truncating: int | None
) -> Survey:
    """Look at all segments, and read the newest one.

    Args:
        directory: of the log.
        base: what the log began after.
        end: the log went up to here at least.
        newest: first position of a segment that there was, and that may hold more; 0 for none.
        truncating: a truncation to this position was interrupted, if one was.

    Raises:
        StorageFormat: another version made a segment.
    """
    names = [name for name in directory.names() if name.endswith(SUFFIX)]
    if names and _first(names[0]) <= base.position:  # a reset was interrupted
        return Survey(LogIndex.beginning(base), surplus=names)
    kept = [name for name in names if truncating is None or _first(name) <= truncating]
    segments = _usable(directory, kept or names[:1])  # the oldest is emptied, not removed
    surplus = names[len(segments) :]
    if not segments:
        found = Survey(LogIndex.beginning(base), surplus=surplus)
    else:
        found = _read_newest(segments)
        found.surplus = surplus
        if truncating is None or truncating > found.index.last:
            last = segments[-1]
            found.lost = last.flushed_after(found.index.last + 1, last.end)
    found.lost |= found.index.last < end or len(segments) < len(kept)
    found.lost |= newest > (segments[-1].first if segments else 0)
    return found


def _usable(directory: Directory, names: list[str]) -> list[Segment]:
    """Open the segments up to one that is damaged, or misses the one before it."""
    segments: list[Segment] = []
    for name in names:
        try:
            segment = Segment.open(name, directory)
        except StorageCorrupt:
            break
        if segments and segment.previous != segments[-1].first:
            segment.file.close()
            break
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
