"""``kubectl pgherd import``: says what an import online shall come to, and waits for it.

The wish goes into the herd's resource, and all that is shown comes from its status: the operator
does the work, and goes on when this ends.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import click

from pgherd_operator.answers import LOOK_S, Run, read_json
from pgherd_operator.api import PLURAL
from pgherd_operator.core.actions import Reason

_ENDS = {"CutOver": Reason.IMPORTED, "Abort": Reason.IMPORT_ABORTED}


def show(kubectl: Run, herd: str) -> None:
    """How far the import is.

    Raises:
        ClickException: there is none, or kubectl fails.
    """
    found = _resource(kubectl, herd)
    told, condition = found["status"].get("importFrom", {}), _condition(found)
    lines = [f"{told.get('phase', 'Waiting')}: {condition.get('message', '')}"]
    if told.get("tables"):
        lines.append(
            f"{told['tablesDone']} of {told['tables']} tables, {told['rowsCopied']} rows copied"
        )
    if told.get("message") and told["message"] not in lines[0]:
        lines.append(told["message"])
    click.echo("\n".join(lines))


def aim(kubectl: Run, herd: str, goal: str) -> None:
    """Set the goal, and wait until it is reached or given up.

    Raises:
        ClickException: it is given up, or refused, or kubectl fails.
    """
    found = _resource(kubectl, herd)
    if _condition(found).get("reason") == Reason.CUT_OVER_FAILED:
        found = _set(kubectl, herd, "Follow")  # so that it is tried again
        found = _until(kubectl, herd, found, lambda reason: reason != Reason.CUT_OVER_FAILED)
    found = _set(kubectl, herd, goal)
    over = {_ENDS[goal], Reason.IMPORTED, Reason.CUT_OVER_FAILED}
    found = _until(kubectl, herd, found, lambda reason: reason in over)
    condition = _condition(found)
    if condition["reason"] != _ENDS[goal]:
        raise click.ClickException(str(condition["message"]))
    click.echo(condition["message"])


def _set(kubectl: Run, herd: str, goal: str) -> dict[str, Any]:
    patch = json.dumps({"spec": {"bootstrap": {"importFrom": {"goal": goal}}}})
    found: dict[str, Any] = read_json(
        kubectl("patch", PLURAL, herd, "--type=merge", f"--patch={patch}", "--output=json")
    )
    return found


def _until(
    kubectl: Run, herd: str, found: dict[str, Any], is_over: Callable[[str], bool]
) -> dict[str, Any]:
    """Wait for a reason that is about this generation of the spec, and show progress."""
    generation, shown = found["metadata"]["generation"], ""
    while True:
        found = _resource(kubectl, herd)
        condition = _condition(found)
        if condition.get("observedGeneration", 0) >= generation and is_over(condition["reason"]):
            return found
        told = found["status"].get("importFrom", {})
        line = condition.get("message", "")
        if condition.get("reason") == Reason.IMPORTING:
            line = told.get("message") or told.get("phase", "")
        if line and line != shown:
            click.echo(line, err=True)
            shown = line
        time.sleep(LOOK_S)


def _resource(kubectl: Run, herd: str) -> dict[str, Any]:
    found: dict[str, Any] = read_json(kubectl("get", PLURAL, herd, "--output=json"))
    bootstrap = found.get("spec", {}).get("bootstrap", {})
    if bootstrap.get("importFrom", {}).get("mode") != "Online":
        raise click.ClickException(f"herd {herd} has no bootstrap.importFrom with mode: Online")
    return {"status": {}} | found


def _condition(found: dict[str, Any]) -> dict[str, Any]:
    conditions = found.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Imported"), {})
