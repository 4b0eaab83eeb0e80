"""A member's status in the text form that Prometheus reads: docs/metrics.md names what counts.

All numbers of the status are told. Those that are known here have a type and a line of help.
"""

from collections.abc import Iterator, Mapping
from typing import Final

_LABELLED = {
    "divergences_total": "kind",
    "rebuilds_total": "outcome",
    "subscription_lag_bytes": "subscription",
    "subscription_lag_entries": "subscription",
    "subscription_lag_s": "subscription",
}
"""Sums by something; its name."""
_WAITS = "commit_waits"
BUCKETS_S: Final = tuple(round(0.0001 * 1.25**step, 7) for step in range(0, 60, 3))
"""Of the histogram, about twice the one before each: some of the ranges that ``figures`` counts."""
KNOWN: Final[Mapping[str, tuple[str, str]]] = {
    "age_s": ("gauge", "how old what a reader sees is at most, in seconds"),
    "applied_writesets": ("counter", "transactions of other members that it has applied"),
    "apply_queue_bytes": ("gauge", "transactions of others that wait to be applied"),
    "capture_off_settings": ("gauge", "settings that keep its server from seeing changes"),
    "certificate_expires_s": ("gauge", "end of its certificate, in seconds since 1970"),
    "databases_whole": ("gauge", "databases of the herd that hold all that was acknowledged"),
    "divergences_total": ("counter", "how often its database was found to be wrong"),
    "gid": ("gauge", "newest position that its database has"),
    "lag_bytes": ("gauge", "of the log that it has not applied yet"),
    "lag_entries": ("gauge", "entries of the log that it has not read yet"),
    "links_up": ("gauge", "other members that it is connected with"),
    "log_flush_average_s": ("gauge", "time of a flush of the log to its disk, in seconds"),
    "log_flush_slowest_s": ("gauge", "the slowest of the latest flushes, in seconds"),
    "log_position": ("gauge", "end of its log"),
    "maintenance_done_total": ("counter", "maintenance of this member that was done"),
    "maintenance_failed_total": ("counter", "maintenance of this member that has failed"),
    "maintenance_waiting": ("gauge", "members that wait for their turn of maintenance"),
    "maintenance_working": ("gauge", "members in maintenance"),
    "own_commits": ("counter", "commits of its own sessions"),
    "own_conflicts": ("counter", "transactions of its own sessions that lost"),
    "pending": ("gauge", "sessions that wait in COMMIT"),
    "rebuilds_total": ("counter", "how often its database was made anew"),
    "roles_differ_count": ("gauge", "roles, settings and the like that other members have not yet"),
    "roles_undone_count": ("gauge", "changes of roles here that were taken back in the last day"),
    "scrub_differences": ("gauge", "differences between members' tables that a scrub has found"),
    "scrub_last_pass_time_s": ("gauge", "end of the last whole scrub, in seconds since 1970"),
    "state": ("gauge", "1 for the state that it is in"),
    "subscription_lag_bytes": ("gauge", "of its log that a subscriber has not confirmed yet"),
    "subscription_lag_entries": ("gauge", "entries that a subscriber has not confirmed yet"),
    "subscription_lag_s": ("gauge", "how long a subscriber has not confirmed something newer"),
    "term": ("gauge", "number of the last election that it knows"),
    "victims": ("counter", "sessions that held a lock that was needed: ended, or told 40001"),
}  # fmt: skip


def to_metrics(status: Mapping[str, object]) -> str:
    """Return the numbers of a status in Prometheus' text format, and its state as a label."""
    label = f'{{member="{_escaped(status.get("name"))}"'
    lines = [*_head("state"), f'pgherd_state{label},state="{_escaped(status.get("state"))}"}} 1']
    for key, value in status.items():
        if isinstance(value, int | float):  # True and False are 1 and 0
            lines += [*_head(key), f"pgherd_{key}{label}}} {value + 0}"]
        elif key in _LABELLED and isinstance(value, Mapping):
            lines += _head(key)
            lines += [
                f'pgherd_{key}{label},{_LABELLED[key]}="{_escaped(one)}"}} {count}'
                for one, count in sorted(value.items())
            ]
        elif key == _WAITS and isinstance(value, Mapping):
            lines += _waits(label, value, status.get("commit_waited_s", 0))
    return "\n".join(lines) + "\n"


def _head(key: str) -> list[str]:
    if key not in KNOWN:
        return []
    kind, text = KNOWN[key]
    return [f"# HELP pgherd_{key} {text}", f"# TYPE pgherd_{key} {kind}"]


def _waits(label: str, waits: Mapping[str, int], total_s: object) -> Iterator[str]:
    """How long sessions have waited in COMMIT, as a histogram."""
    name = "pgherd_commit_wait_seconds"
    yield f"# HELP {name} from a session's writeset to its verdict to commit"
    yield f"# TYPE {name} histogram"
    counts = {float(bound): count for bound, count in waits.items()}
    for limit in BUCKETS_S:
        below = sum(count for bound, count in counts.items() if bound <= limit)
        yield f'{name}_bucket{label},le="{limit}"}} {below}'
    yield f'{name}_bucket{label},le="+Inf"}} {sum(counts.values())}'
    yield f"{name}_sum{label}}} {total_s}"
    yield f"{name}_count{label}}} {sum(counts.values())}"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
