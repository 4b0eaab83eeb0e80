"""Tells what people and metrics want to know of a member's log. It keeps nothing."""

from pgherd_sidecar.agent.log.writer import LogWriter
from pgherd_sidecar.agent.membership.peers import Peers
from pgherd_sidecar.core.consensus import LogMember


def log_status(
    member: LogMember, writer: LogWriter, peers: Peers, *, primary: bool
) -> dict[str, int | float | str | None]:
    """Return positions, roles and counters."""
    pace = writer.pace
    return {
        "component": "primary" if primary else "secondary",
        "term": member.term,
        "proposer": member.proposer,
        "role": member.role.value,
        "commit_position": member.commit_position,
        "flushed_position": member.flushed_position,
        "log_position": member.last_position,
        "log_writes": writer.writes,
        "log_damaged_at": member.damaged_at,
        "log_incomplete": member.incomplete,
        **peers.status(),
        "log_flush_average_s": pace.average_s,
        "log_flush_slowest_s": pace.slowest_s,
    }
