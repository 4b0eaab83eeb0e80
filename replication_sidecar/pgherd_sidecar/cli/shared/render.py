"""Results as text for people and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.answers import LongCommandAnswer, ScrubDifference, Status
from pgherd_sidecar.client.view import PeerAnswer
from pgherd_sidecar.local.herd import Herd
from pgherd_sidecar.local.node import NodeState

if TYPE_CHECKING:  # its home takes long to import, and most commands compare nothing
    from pgherd_sidecar.local.operations.verify import Comparison, TableDifference

_NAMES_MAX = 10


def states(
    herd: Herd, nodes: Sequence[NodeState], *, as_json: bool, passwords: bool = False
) -> str:
    """Render the state of every node.

    Args:
        herd: on this machine.
        nodes: all of it.
        as_json: for programs; with the passwords of both roles.
        passwords: in the text, too.
    """
    said = cluster.speaker(node.answer for node in nodes if node.answer is not None)
    if as_json:
        members = [
            _state(herd, node) | _known(node, cluster.seen(said, node.member.name))
            for node in nodes
        ]
        knows = cluster.informed(node.answer for node in nodes if node.answer is not None)
        head = {
            "cluster_id": str(herd.cluster_id),
            "application_dsn": herd.application_dsn(password=True),
            "reading_dsn": herd.reading_dsn(),
            **cluster.summary(said, knows),
        }
        return json.dumps({**head, "members": members}, indent=2)
    dsn = herd.app_dsn if passwords else herd.silent_dsn
    rows = [
        (
            node.member.name,
            node.state,
            _number(node.gid),
            _number(node.log_position),
            "-" if node.member.witness else dsn(node.member),
        )
        for node in nodes
    ]
    text = aligned(("NAME", "STATE", "GID", "LOG", "DSN"), rows)
    reasons = [
        f"{node.member.name}: {' '.join(node.reason.split())}"
        for node in nodes
        if node.reason and not node.is_up
    ]
    lagging = [
        f"{node.member.name}: has flushed nothing new for {lagging_s:.0f} s, and slows nobody"
        for node in nodes
        if (lagging_s := cluster.seen(said, node.member.name).lagging_s)
    ]
    notes = [line for node in nodes if node.answer is not None for line in _notes(node.answer)]
    scrubbed = next((_scrubbed(node.answer) for node in nodes if node.answer is not None), [])
    keyless = next((_keyless(one) for node in nodes if (one := node.answer) is not None), [])
    building = _building(node.answer for node in nodes if node.answer is not None)
    upkeep = [line for one in nodes if one.answer is not None for line in _maintained(one.answer)]
    capture = _capture(node.answer for node in nodes if node.answer is not None)
    application = f"for applications: {herd.application_dsn(password=passwords)}"
    return "\n".join(
        [
            text,
            *reasons,
            *lagging,
            *notes,
            *scrubbed,
            *keyless,
            *building,
            *upkeep,
            *capture,
            application,
        ]
    )


def _capture(answers: Iterable[Status]) -> list[str]:
    """A line that tells how the members capture rows: natively or in SQL, and why not natively."""
    members: dict[tuple[str, str], list[str]] = {}
    for said in answers:
        why = f" ({said.capture_reason})" if said.capture_reason else ""
        if said.capture:  # none by a witness, or without a server
            members.setdefault((said.capture, why), []).append(said.name)
    ways = [f"{mode} on {', '.join(names)}{why}" for (mode, why), names in members.items()]
    return [f"capture: {'; '.join(ways)}"] if ways else []


def _maintained(said: Status) -> list[str]:
    """A line for a node that is at maintenance, or waits until it can be spared for it."""
    one = said.maintenance
    if one is None:
        waits = said.maintenance_waits
        return [f"{said.name}: waits for maintenance: {waits}"] if waits else []
    what = f": {one.statement}" if one.statement else ""
    return [f"{said.name}: maintenance {one.run}, {one.seconds:.0f} s: {one.phase}{what}"]


def _building(answers: Iterable[Status]) -> list[str]:
    """A line for each index that is built or dropped, with what each member does."""
    members: dict[str, list[str]] = {}
    for said in answers:
        for one in said.long_commands:
            does = "dropped" if one.kind == "drop" else "built"
            what = f"being {does}: index {one.index} of {one.table}, for a client of {one.origin}"
            members.setdefault(what, []).append(f"{said.name} {_progress(one)}")
    return [f"{what}: {', '.join(doings)}" for what, doings in members.items()]


def _progress(one: LongCommandAnswer) -> str:
    if one.failed:
        return f"can't ({one.failed})"
    if one.here:
        return "has dropped it" if one.kind == "drop" else "has it"
    return one.phase or "waits"


def _scrubbed(said: Status) -> list[str]:
    """What the scrub has found: every member knows the same."""
    return [_found(one) for one in said.scrub.differences] if said.scrub is not None else []


def _keyless(said: Status) -> list[str]:
    """The tables that a primary key would make faster: every member has the same."""
    if not said.without_key:
        return []
    more = len(said.without_key) - _NAMES_MAX
    names = ", ".join(said.without_key[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
    return [f"without a primary key, so updates and deletes are slow: {names}"]


def _found(one: ScrubDifference) -> str:
    names = ", ".join(one.members)
    if one.kind == "index":
        return f"index {one.index} differs from its table {one.table}: {one.text}"
    who = f"{names} differs from the others" if one.majority else f"{names} differ"
    keys = [f"({', '.join(json.loads(key))})" for key in one.keys] if one.kind == "rows" else []
    keys = list(one.keys) if one.kind == "tables" else keys
    more = f" and {one.more_keys} more" if one.more_keys else ""
    what = f"table {one.table}" if one.kind == "rows" else "the tables"
    where = f", {'key' if one.kind == 'rows' else 'table'} {', '.join(keys)}{more}" if keys else ""
    return f"scrub: {what}{where}: {who}, at GID {one.gid}"


def _notes(said: Status) -> list[str]:
    off = [f"{said.name}: what this lets by is not replicated: {one}" for one in said.capture_off]
    off += [f"{said.name}: keeps captured rows on its disk for {one}" for one in said.capture_kept]
    off += [f"{said.name}: differs from the other members: {one}" for one in said.roles_differ]
    off += [f"{said.name}: taken back: {one}" for one in said.roles_undone]
    return (
        off
        + _incidents(said)
        + [
            f"{said.name}: keeps its log after GID {one.after} for {one.hold}, until {one.until}"
            for one in said.log_holds
        ]
    )


def _incidents(said: Status) -> list[str]:
    """A line for the newest incident: what stopped the node's database is told for good."""
    if not said.incidents:
        return []
    one = said.incidents[-1]
    what = [f"GID {one.gid}" if one.gid else "", one.statement, one.table, one.sqlstate]
    where = ", ".join(filter(None, what))
    how = one.outcome or ("being rebuilt" if one.cure == "rebuild" else "waits for you")
    count = f" ({one.number} so far)" if one.number > 1 else ""
    about = f"{one.kind}{f' at {where}' if where else ''}"
    return [f"{said.name}: {one.at}: {about}: {how}{count}; --json tells all"]


def _state(herd: Herd, node: NodeState) -> dict[str, Any]:
    return {
        "name": node.member.name,
        "number": node.member.number,
        "witness": node.member.witness,
        "reader": node.member.reader,
        "dsn": None if node.member.witness else herd.dsn(node.member),
        "app_dsn": None if node.member.witness else herd.app_dsn(node.member),
        "health": f"http://127.0.0.1:{node.member.health_port}",
        "state": node.state,
        "reason": node.reason,
        "gid": node.gid,
        "log_position": node.log_position,
        "postgres": "up" if node.postgres else "down",
        "sidecar": "up" if node.sidecar else "down",
        "log_holds": [one.model_dump() for one in node.answer.log_holds] if node.answer else [],
        "capture": node.answer.capture if node.answer else "",
        "capture_reason": node.answer.capture_reason if node.answer else "",
        "capture_off": list(node.answer.capture_off) if node.answer else [],
        "capture_kept": list(node.answer.capture_kept) if node.answer else [],
        "roles_differ": list(node.answer.roles_differ) if node.answer else [],
        "roles_undone": list(node.answer.roles_undone) if node.answer else [],
        "without_key": list(node.answer.without_key) if node.answer else [],
        "long_commands": (
            [one.model_dump() for one in node.answer.long_commands] if node.answer else []
        ),
        "maintenance": (
            node.answer.maintenance.model_dump()
            if node.answer is not None and node.answer.maintenance is not None
            else None
        ),
        "maintenance_waits": node.answer.maintenance_waits if node.answer else "",
        "scrub": node.answer.scrub.model_dump() if node.answer and node.answer.scrub else None,
        "incidents": [one.model_dump() for one in node.answer.incidents] if node.answer else [],
        "divergences_total": node.answer.divergences_total if node.answer else {},
        "rebuilds_total": node.answer.rebuilds_total if node.answer else {},
        **node.details,
    }


def _known(node: NodeState, peer: PeerAnswer) -> dict[str, Any]:
    own = node.answer.role if node.answer is not None else None
    return _seen(peer) | {"role": own or peer.role}


def _seen(peer: PeerAnswer) -> dict[str, Any]:
    return {
        "role": peer.role,
        "lag_bytes": peer.lag_bytes,
        "lag_entries": peer.lag_entries,
        "last_seen_s": peer.last_seen_s,
        "lagging_s": peer.lagging_s,
    }


def one(said: Status, *, as_json: bool) -> str:
    """Render what one sidecar says of itself."""
    if as_json:
        return said.model_dump_json(indent=2)
    row = (said.name, said.state, _number(said.gid), _number(said.log_position))
    reason = [f"{said.name}: {said.reason}"] if said.reason else []
    return "\n".join(
        [
            aligned(("NAME", "STATE", "GID", "LOG"), [row]),
            *reason,
            *_notes(said),
            *_scrubbed(said),
            *_keyless(said),
            *_building([said]),
            *_maintained(said),
            *_capture([said]),
        ]
    )


def view(said: Status, *, as_json: bool) -> str:
    """Render who speaks for the herd, and what it says of the view."""
    if as_json:
        return json.dumps({"cluster_id": said.cluster_id, **cluster.summary(said)}, indent=2)
    voters = [one.name for one in said.view.members if one.voter] if said.view else []
    rows = [
        ("view", _number(said.view.id if said.view else None)),
        ("voters", ", ".join(voters) or "-"),
        ("component", said.component or "-"),
        ("term", _number(said.term)),
        ("proposer", said.proposer or "-"),
        ("told by", said.name),
        ("cluster", said.cluster_id),
    ]
    return aligned(rows[0], rows[1:]) + (f"\n{said.reason}" if said.reason else "")


def members(said: Status, *, as_json: bool) -> str:
    """Render the members of the view as the one that speaks for the herd sees them."""
    found = said.view.members if said.view else ()
    if as_json:
        rows = [one.model_dump() | _seen(cluster.seen(said, one.name)) for one in found]
        return json.dumps({"cluster_id": said.cluster_id, "members": rows}, indent=2)
    lines = []
    for one in found:
        peer = cluster.seen(said, one.name)
        votes = "witness" if one.witness else "votes" if one.voter else "learns"
        lag = peer.lag_bytes if peer.lag_bytes is not None else peer.lag_entries
        lines.append(
            (
                one.name,
                str(one.number),
                "reads" if one.reader else votes,
                peer.role or "-",
                _number(lag),
                "-" if peer.last_seen_s is None else f"{peer.last_seen_s:.1f} s ago",
                one.disk_id or "-",
            )
        )
    return aligned(("NAME", "NUMBER", "VOTE", "ROLE", "LAG", "HEARD", "DISK"), lines)


def comparison(result: "Comparison") -> str:
    """Render what ``verify`` found: a line for each table and node, then the differences."""
    rows = [
        (
            table.name,
            name,
            _number(node.rows if node else None),
            node.checksum if node else "missing",
            "same" if table.identical else "DIFFERS",
        )
        for table in result.tables
        for name, node in table.nodes.items()
    ]
    lines = [aligned(("TABLE", "NODE", "ROWS", "CHECKSUM", "RESULT"), rows)]
    lines += [_sentence(difference) for difference in result.differences]
    lines += _of_indexes(result)
    verdict = "identical" if result.identical else "DIFFERENT"
    lines.append(f"{len(result.tables)} tables at GID {result.gid}: {verdict}")
    return "\n".join(lines)


def _sentence(difference: "TableDifference") -> str:
    missing = [name for name, version in difference.versions.items() if version is None]
    if difference.kind == "table":
        return f"{difference.table}: does not exist on {', '.join(missing)}"
    groups = _groups(difference)
    where = " | ".join("=".join(group) for group in groups)
    if difference.kind == "columns":
        return f"{difference.table}: columns differ: {where}"
    if missing:
        return f"{difference.table} key {difference.key}: missing on {', '.join(missing)}" + (
            f", differs: {where}" if len(groups) > 1 else ""
        )
    return f"{difference.table} key {difference.key}: differs: {where}"


def _of_indexes(result: "Comparison") -> list[str]:
    lines = [
        f"{name}: index {index} differs from its table: {fault}"
        for name, one in result.indexes.items()
        for index, fault in one.faults.items()
    ]
    lines += [
        f"{name}: index {index} was not checked: {why}"
        for name, one in result.indexes.items()
        for index, why in one.skipped.items()
    ]
    without = [name for name, one in result.indexes.items() if not one.available]
    if without:
        lines.append(f"indexes were not checked on {', '.join(without)}: no amcheck there")
    return lines


def _groups(difference: "TableDifference") -> list[list[str]]:
    """Return the nodes that have it, grouped by what they have."""
    groups: dict[str, list[str]] = {}
    for name, version in difference.versions.items():
        if version is not None:
            groups.setdefault(version, []).append(name)
    return list(groups.values())


def comparison_json(result: "Comparison") -> str:
    """Render what ``verify`` found for programs."""
    return json.dumps(
        {
            "identical": result.identical,
            "gid": result.gid,
            "skipped": result.skipped,
            "tables": [
                {
                    "table": table.name,
                    "identical": table.identical,
                    "nodes": {
                        name: node.model_dump() if node else None
                        for name, node in table.nodes.items()
                    },
                }
                for table in result.tables
            ],
            "indexes": {name: one.model_dump() for name, one in result.indexes.items()},
            "differences": [
                {
                    "table": difference.table,
                    "kind": difference.kind,
                    "key": difference.key,
                    "missing_on": [
                        name for name, version in difference.versions.items() if version is None
                    ],
                    "versions": dict(difference.versions),
                }
                for difference in result.differences
            ],
        },
        indent=2,
    )


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines with columns as wide as what is in them."""
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
