"""The makings of a member's log: its directory, its times, and what a block means here.

Functions of the configuration.
"""

from math import inf

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.membership import founding, roster
from pgherd_sidecar.agent.membership.notes import RETIRED, Note
from pgherd_sidecar.core.consensus import ENTRIES, Block, LogBase, Membership, Timing
from pgherd_sidecar.core.replication.entries import Members, encode_entry
from pgherd_sidecar.env.storage.disk import RealDirectory
from pgherd_sidecar.env.storage.segments import SegmentLog, StorageFormat


def delivered(block: Block) -> Block:
    """Return what the caller sees of a block: of a change of the membership, who has a database."""
    if block.kind == ENTRIES:
        return block
    members = Members(roster.numbers(Membership.decode(block.data)))
    return Block.make(block.term, block.first, block.count, encode_entry(members))


def open_log(config: NodeConfig) -> SegmentLog:
    """Open the log of this member; one that was never used begins as the configuration says.

    Raises:
        StorageError: it can't be used.
        OSError: another file beside it can't.
    """
    log = SegmentLog(
        RealDirectory(config.data_dir / "log"),
        segment_bytes=config.limits.segment_bytes,
        cache_bytes=config.limits.log_cache_bytes,
    )
    if log.fresh or founding.pristine(log):
        log.reset(LogBase(membership=roster.founding(config)))
        if not config.founder:
            Note(config.data_dir, RETIRED).clear()
    try:
        for membership in log.index.memberships:
            roster.peers(config, membership, frozenset())
    except roster.NoContactError as error:
        raise StorageFormat("the log") from error
    return log


def reset_log(config: NodeConfig, base: LogBase) -> None:
    """Have the log begin anew.

    Raises:
        StorageError: it goes beyond that, or can't be written.
    """
    log = open_log(config)
    log.reset(base)
    log.close()


def timing(config: NodeConfig) -> Timing:
    """Return the times of the protocol."""
    timing = config.timing
    return Timing(
        heartbeat_s=timing.heartbeat_ms / 1000,
        election_min_s=timing.election_timeout_ms / 1000,
        election_max_s=2 * timing.election_timeout_ms / 1000,
        evict_s=timing.evict_ms / 1000 if timing.evict_ms else inf,
    )
