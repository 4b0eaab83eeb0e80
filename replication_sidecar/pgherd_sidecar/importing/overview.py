"""How far an import is, for people and programs."""

from typing import Any

from pgherd_sidecar.importing.changes import pgoutput
from pgherd_sidecar.importing.ends import source
from pgherd_sidecar.importing.ends.connections import SourceAddress
from pgherd_sidecar.importing.ends.errors import ImportFailed
from pgherd_sidecar.importing.ends.target import Target
from pgherd_sidecar.importing.engine import bar, size

_PHASES = {
    "begun": "definitions are being made", "copy": "rows are being copied",
    "keys": "keys and indexes are being made", "follow": "it follows the source",
    "abort": "it is being removed",
    "done": "the cut-over is done, foreign keys look at the rows",
}  # fmt: skip


async def look(target: Target, dsn: str | None) -> dict[str, Any]:
    """What the herd says, and the source if it can be reached.

    Raises:
        ImportFailed: the herd says nothing.
    """
    if not await target.is_under_way():
        return {"phase": None}
    standing = await target.standing()
    copied = await target.copied()
    statements = await target.statements()
    told: dict[str, Any] = {
        "phase": standing.phase, "run_by": standing.run_by, "source": standing.source,
        "slot": standing.slot, "stopped": standing.stopped,
        "position": pgoutput.lsn_text(standing.position) if standing.position else None,
        "tables": len(copied), "tables_done": sum(one.done for one in copied),
        "rows_copied": sum(one.rows for one in copied),
        "bytes_copied": sum(one.bytes for one in copied),
        "bytes_of_tables": sum(one.table.bytes for one in copied),
        "statements": len(statements), "statements_done": standing.statement,
        "lag_bytes": None, "running": None,
    }  # fmt: skip
    try:
        session = await SourceAddress(dsn or standing.source).session()
    except ImportFailed as error:
        return told | {"error": str(error)}
    try:
        slot = await source.rows(session, "slot", slot=standing.slot)
        if slot:
            told["running"] = slot[0]["active"]
            confirmed = pgoutput.lsn(slot[0]["confirmed"]) if slot[0]["confirmed"] else 0
            reached = max(confirmed, standing.position or 0)
            told["lag_bytes"] = max(await source.position(session) - reached, 0)
    finally:
        await session.close()
    return told


def text(told: dict[str, Any]) -> str:
    """The same in words."""
    if told["phase"] is None:
        return "no import is under way"
    lines = [_PHASES[told["phase"]]]
    if told["phase"] in ("copy", "keys"):
        share = told["tables_done"] / told["tables"] if told["tables"] else 1.0
        lines.append(
            f"copied: {bar(share)} {told['tables_done']} of {told['tables']} tables,"
            f" {told['rows_copied']} rows, {size(told['bytes_copied'])}"
        )
    lines.append(f"definitions: {told['statements_done']} of {told['statements']}")
    if told["position"]:
        behind = "" if told["lag_bytes"] is None else f", {size(told['lag_bytes'])} behind"
        lines.append(f"position: {told['position']}{behind}")
    lines.append(f"source: {told['source']} slot {told['slot']}")
    if told["phase"] == "follow" and told["running"] is False:
        lines.append("nobody runs it: go on with `pgherd import`")
    if told["stopped"] and told["phase"] != "done":
        lines.append("the source takes no writes: a cut-over is under way, or has died")
    if "error" in told:
        lines.append(told["error"])
    return "\n".join(lines)
