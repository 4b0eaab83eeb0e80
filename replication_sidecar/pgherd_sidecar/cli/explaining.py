"""``pgherd explain``: asks a member what the entry at a GID is, and says it in words.

Any member with the entry in its log can tell. One that also knows the verdict is preferred.
"""

from collections.abc import Mapping
from typing import Any

from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.admin import AdminError
from pgherd_sidecar.client.errors import HerdError

_KEYS_SHOWN = 20


async def explain(
    listen: cluster.Listen, gid: int, *, rows: bool, on: str | None = None
) -> dict[str, Any]:
    """Ask the members, one after the other, until one of them can tell all.

    Args:
        listen: asks the sidecars for their status.
        gid: the position in the log.
        rows: with the values of rows.
        on: ask only this member.

    Raises:
        HerdError: nobody can tell.
    """
    voices = [voice for voice in await listen() if on in (None, voice.status.name)]
    if not voices:
        raise HerdError(f"no sidecar answers{f' as {on}' if on else ''}")
    voices.sort(key=lambda voice: voice.status.log_position or 0, reverse=True)
    refusals: list[str] = []
    best: dict[str, Any] | None = None
    for voice in voices:
        try:
            told = await voice.admin.explain(gid, rows=rows)
        except AdminError as error:
            refusals.append(error.reason)
            continue
        told["told_by"] = voice.status.name
        if told.get("verdict") != "unknown":
            return told
        best = best or told
    if best is None:
        raise HerdError("; ".join(dict.fromkeys(refusals)))
    return best


def text(told: Mapping[str, Any]) -> str:
    """Say in lines what was told."""
    lines = [f"GID {told['gid']}: {told['kind']}, told by {told.get('told_by', '-')}"]
    skipped = {"gid", "kind", "told_by", "tables", "commands", "keys", "rows", "incidents"}
    plain = {name: value for name, value in told.items() if name not in skipped}
    width = max((len(name) for name in plain), default=0)
    lines += [f"  {name.ljust(width)}  {_plain(value)}" for name, value in plain.items()]
    for table, counts in told.get("tables", {}).items():
        done = ", ".join(f"{count} {what}" for what, count in counts.items())
        lines.append(f"  table {table}: {done or 'rows in pieces'}")
    for command in told.get("commands", ()):
        role = f" as {command['role']}" if "role" in command else ""
        filled = f" {command['table']}: {command['rows']} rows" if "rows" in command else ""
        lines.append(f"  command {command['kind']}{filled}{role}")
        lines += [f"    {line}" for line in command.get("sql", "").splitlines()]
    lines += _keys(told)
    lines += [f"  row {one['table']}: {one['row']}" for one in told.get("rows", ())]
    for one in told.get("incidents", ()):
        lines.append(f"  {one['at']}: {one['reason']}: {one['outcome'] or one['cure']}")
    return "\n".join(lines)


def _keys(told: Mapping[str, Any]) -> list[str]:
    keys = told.get("keys", ())
    lines = [
        f"  key {one['key']} {one['mode']} since GID {one['base']}"
        f"{': ' + one['of'] if one['of'] else ''}"
        for one in keys[:_KEYS_SHOWN]
    ]
    more = told.get("keys_total", len(keys)) - len(lines)
    return [*lines, f"  and {more} keys more"] if more > 0 else lines


def _plain(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(str, value)) or "-"
        case _:
            return str(value)
