"""Results as text for people and as JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pgherd_sidecar.cli.herd import Herd
from pgherd_sidecar.cli.node import NodeState
from pgherd_sidecar.cli.verify import Comparison, Difference


def states(herd: Herd, nodes: Sequence[NodeState], *, as_json: bool) -> str:
    """Render the state of every node."""
    if as_json:
        members = [_state(herd, node) for node in nodes]
        return json.dumps({"cluster_id": str(herd.cluster_id), "members": members}, indent=2)
    rows = [
        (
            node.member.name,
            node.state,
            _number(node.gid),
            _number(node.log_position),
            herd.dsn(node.member),
        )
        for node in nodes
    ]
    text = _table(("NAME", "STATE", "GID", "LOG", "DSN"), rows)
    reasons = [
        f"{node.member.name}: {' '.join(node.reason.split())}"
        for node in nodes
        if node.reason and not node.takes_writes
    ]
    return "\n".join([text, *reasons])


def _state(herd: Herd, node: NodeState) -> dict[str, Any]:
    return {
        "name": node.member.name,
        "number": node.member.number,
        "dsn": herd.dsn(node.member),
        "app_dsn": herd.app_dsn(node.member),
        "state": node.state,
        "reason": node.reason,
        "gid": node.gid,
        "log_position": node.log_position,
        "postgres": "up" if node.postgres else "down",
        "sidecar": "up" if node.sidecar else "down",
        **node.details,
    }


def comparison(result: Comparison) -> str:
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
    lines = [_table(("TABLE", "NODE", "ROWS", "CHECKSUM", "RESULT"), rows)]
    lines += [_sentence(difference) for difference in result.differences]
    verdict = "identical" if result.identical else "DIFFERENT"
    lines.append(f"{len(result.tables)} tables at GID {result.gid}: {verdict}")
    return "\n".join(lines)


def _sentence(difference: Difference) -> str:
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


def _groups(difference: Difference) -> list[list[str]]:
    """Return the nodes that have it, grouped by what they have."""
    groups: dict[str, list[str]] = {}
    for name, version in difference.versions.items():
        if version is not None:
            groups.setdefault(version, []).append(name)
    return list(groups.values())


def comparison_json(result: Comparison) -> str:
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


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [tuple(header), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
