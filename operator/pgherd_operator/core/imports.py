"""An import online: which Job is to run, and what its users are told.

The Jobs are the memory of what was tried. One that cuts over and has failed stays until the user
wants something else: it is not repeated by itself, for each attempt stops writes at the source.
How an import has ended is noted in the ledger before its Job goes; and that it has ended well also
on a password, for the ledger goes with the resource, and the volumes may stay.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.status import ClusterStatus, ConditionType, ImportStatus
from pgherd_operator.core import status
from pgherd_operator.core.actions import (
    Action,
    Create,
    Delete,
    Kind,
    MarkImported,
    NoteImport,
    Reason,
    Step,
)  # fmt: skip
from pgherd_operator.core.group import Group
from pgherd_operator.core.observed import Imported, ImportJob, Ledger, Observed, Phase
from pgherd_operator.objects import imports as objects
from pgherd_operator.objects import names
from pgherd_operator.objects.model import Release, Role

FOLLOW: Final = "follow"
CUT_OVER: Final = "cut-over"
ABORT: Final = "abort"
GOALS = {"Follow": FOLLOW, "CutOver": CUT_OVER, "Abort": ABORT}
"""What the program is told, by what the spec has."""
_TEXTS = {
    FOLLOW: "importing: copying from the source, and following it",
    CUT_OVER: "importing: cutting over",
    ABORT: "removing what the import has made",
}


def asked(cluster: Cluster) -> bool:
    """Whether the spec has an import online."""
    return cluster.spec.online_import is not None


def is_open(cluster: Cluster, ledger: Ledger | None) -> bool:
    """Whether an import may be under way, so that its certificate is needed."""
    if ledger is None or ledger.phase is not Phase.FOUNDED:
        return False
    return asked(cluster) and ledger.imported is Imported.NO


def is_watched(observed: Observed) -> bool:
    """Whether there is something to look at every few seconds."""
    return is_open(observed.cluster, observed.ledger) and bool(observed.import_jobs)


def steps(observed: Observed, group: Group, release: Release) -> list[Step]:
    """What to do about the import."""
    cluster, ledger = observed.cluster, observed.ledger
    online = cluster.spec.online_import
    if online is None or ledger is None or ledger.phase is not Phase.FOUNDED:
        return []
    noted = _noting(observed, ledger)
    if noted is not None:
        return [noted]
    if ledger.imported is not Imported.NO:
        return [*_marking(observed, ledger), *_cleaning(observed)]
    return _running_one(observed, group, release, _wanted(observed))


def _running_one(
    observed: Observed, group: Group, release: Release, wanted: str | None
) -> list[Step]:
    """Have the Job run that is wanted, and no other one."""
    going = _outdated(observed, group, release, wanted)
    if going:
        return [Step(Reason.IMPORTING, "ending what ran of the import", tuple(going))]
    if wanted is None or wanted in observed.import_jobs or waits_for(observed, group):
        return []
    job = objects.job(observed.cluster, wanted, _members(observed), release)
    return [Step(Reason.IMPORTING, _TEXTS[wanted], (Create(job),))]


def _noting(observed: Observed, ledger: Ledger) -> Step | None:
    """Write down how the import has ended, if it just has; or that it begins anew."""
    if ledger.imported is Imported.DONE:
        return None
    for goal in (CUT_OVER, ABORT):
        job = observed.import_jobs.get(goal)
        if job is None or job.ended is not True:
            continue
        if goal == CUT_OVER or job.outcome.get("outcome") == "done":
            text = _result(observed.cluster, job.outcome)
            return Step(Reason.IMPORTED, text, (NoteImport(Imported.DONE, text),))
        if ledger.imported is Imported.NO and goal_of(observed) == ABORT:
            text = "nothing is left of the import, at the source and in the herd"
            return Step(Reason.IMPORT_ABORTED, text, (NoteImport(Imported.ABORTED, text),))
    if ledger.imported is Imported.ABORTED and goal_of(observed) != ABORT:
        return Step(Reason.IMPORTING, "the import begins anew", (NoteImport(Imported.NO),))
    return None


def _result(cluster: Cluster, outcome: Mapping[str, Any]) -> str:
    parts = ["the cut-over is done"]
    tables, taken_s = outcome.get("tables"), outcome.get("without_writes_s")
    if isinstance(tables, int) and isinstance(taken_s, int | float):
        parts.append(f"all {tables} tables are equal")
        parts.append(f"no writes for {taken_s:.1f} s")
    if outcome.get("left"):
        parts.append(str(outcome["left"]))
    parts.append(
        f"connect by Secret {names.credentials(cluster.name, 'app')} to service {cluster.name}-rw"
    )
    parts.append(
        "the source is read-only until ALTER DATABASE ... RESET default_transaction_read_only and"
        " DROP SCHEMA pgherd_import CASCADE"
    )
    return "; ".join(parts)


def was_done(observed: Observed, cluster_id: str) -> bool:
    """Whether this herd has an import online behind it, though there is no ledger to say so."""
    marked = observed.secrets.get(names.credentials(observed.cluster.name, "superuser"))
    return marked is not None and marked.ours and marked.imported == cluster_id


def _marking(observed: Observed, ledger: Ledger) -> list[Step]:
    """Remember the end where it outlives the resource."""
    name = names.credentials(observed.cluster.name, "superuser")
    secret = observed.secrets.get(name)
    if ledger.imported is not Imported.DONE or was_done(observed, ledger.cluster_id):
        return []
    if secret is None or not secret.ours:
        return []
    action = MarkImported(name, secret.uid, ledger.cluster_id)
    return [Step(Reason.IMPORTED, "noting that the import is done", (action,), quiet=True)]


def _cleaning(observed: Observed) -> list[Step]:
    """Remove what only an import that is under way needs."""
    cluster = observed.cluster
    actions: list[Action] = [
        _delete(cluster, goal, job)
        for goal, job in sorted(observed.import_jobs.items())
        if not job.deleting
    ]
    secret = observed.secrets.get(names.import_certificate(cluster.name))
    if secret is not None and secret.ours and cluster.spec.tls.mode == "SelfSigned":
        actions.append(Delete(Kind.SECRET, secret.name, secret.uid))
    if not actions:
        return []
    return [Step(Reason.IMPORTED, "the import's Jobs go", tuple(actions), quiet=True)]


def goal_of(observed: Observed) -> str:
    """What the import shall come to, as the program is told."""
    online = observed.cluster.spec.online_import
    assert online is not None
    return GOALS[online.goal]


def has_failed(observed: Observed) -> bool:
    """Whether there was an attempt to cut over that is not to be repeated by itself."""
    attempt = observed.import_jobs.get(CUT_OVER)
    return goal_of(observed) == CUT_OVER and attempt is not None and attempt.ended is False


def _wanted(observed: Observed) -> str | None:
    """The Job that shall run."""
    if observed.cluster.spec.hibernated:
        return None
    return FOLLOW if has_failed(observed) else goal_of(observed)


def _outdated(
    observed: Observed, group: Group, release: Release, wanted: str | None
) -> list[Action]:
    """Remove Jobs that are not the one that shall run, but for the record of an attempt."""
    found: list[Action] = []
    for goal, job in sorted(observed.import_jobs.items()):
        if job.deleting or (goal == CUT_OVER and has_failed(observed)):
            continue
        if goal != wanted or job.ended is not None or _is_other(observed, group, release, goal):
            found.append(_delete(observed.cluster, goal, job))
    return found


def _is_other(observed: Observed, group: Group, release: Release, goal: str) -> bool:
    """Whether a Job that follows was made from something else, and can be replaced now.

    Such as of other members. One that cuts over, or removes, is not interrupted.
    """
    if goal != FOLLOW or any(member.awaited for member in group.members):
        return False
    made = objects.job(observed.cluster, goal, _members(observed), release)
    revision = made["metadata"]["annotations"][names.REVISION]
    return bool(observed.import_jobs[goal].revision != revision)


def _members(observed: Observed) -> list[int]:
    return [seat.number for seat in observed.seats() if seat.role is Role.DATABASE]


def waits_for(observed: Observed, group: Group) -> str:
    """What has to be there before a Job is made."""
    cluster, name = observed.cluster, names.import_certificate(observed.cluster.name)
    if cluster.spec.hibernated:
        return "the herd sleeps"
    if len(_members(observed)) < cluster.spec.instances:
        return "not all members are there"
    if not any(member.healthy and member.role is Role.DATABASE for member in group.members):
        return "no member takes writes"
    if name not in observed.secrets:
        return f"secret {name} is missing"
    if any(job.deleting for job in observed.import_jobs.values()):
        return "an earlier Job of the import ends"
    return ""


def _delete(cluster: Cluster, goal: str, job: ImportJob) -> Delete:
    return Delete(Kind.JOB, names.import_job(cluster.name, goal), job.uid)


# ---- what users are told ------------------------------------------------------------------


def shown(
    described: ClusterStatus, observed: Observed, group: Group, now: datetime
) -> ClusterStatus:
    """The status with what is to be told of the import, if one is asked for."""
    if not asked(observed.cluster):
        return described
    verdict = _verdict(observed, group)
    described = status.replaced(described, status.condition(observed.cluster, verdict, now))
    return described.model_copy(update={"import_from": _progress(observed)})


def _running(observed: Observed) -> ImportJob | None:
    """The Job that runs, if one does."""
    jobs = observed.import_jobs.values()
    return next((job for job in jobs if job.ended is None and not job.deleting), None)


def _verdict(observed: Observed, group: Group) -> status.Verdict:
    kind, ledger = ConditionType.IMPORTED, observed.ledger
    if ledger is None or ledger.phase is not Phase.FOUNDED:
        return kind, "False", Reason.WAITING, "the herd is being made"
    match ledger.imported:
        case Imported.DONE:
            return kind, "True", Reason.IMPORTED, ledger.import_result
        case Imported.ABORTED:
            return kind, "False", Reason.IMPORT_ABORTED, ledger.import_result
        case Imported.NO:
            return kind, "False", *_under_way(observed, group)


def _under_way(observed: Observed, group: Group) -> tuple[Reason, str]:
    """Why it has not ended."""
    job = _running(observed)
    stopped = _stopped(job)
    if has_failed(observed):
        attempt = observed.import_jobs[CUT_OVER]
        said = attempt.outcome.get("error", "its pod has gone")
        text = f"the cut-over was given up: {said}. The source is followed again"
        text += f" ({stopped[1]})" if stopped is not None else ""
        return Reason.CUT_OVER_FAILED, f"{text}. To try again set goal: Follow first"
    if stopped is not None:
        return stopped
    if job is None:
        return Reason.WAITING, waits_for(observed, group) or "it is about to begin"
    if job.told.get("phase") == "Following" and goal_of(observed) == FOLLOW:
        return Reason.IMPORT_FOLLOWS, "the source is followed; goal: CutOver ends the import"
    return Reason.IMPORTING, "see status.importFrom"


def _stopped(job: ImportJob | None) -> tuple[Reason, str] | None:
    """What keeps a Job that is there from going on."""
    if job is None:
        return None
    reasons = [str(one) for one in job.told.get("reasons") or ()]
    if reasons:
        text = f"the source can't be taken over, and nothing was made: {'; '.join(reasons)}"
        return Reason.IMPORT_REFUSED, text
    if job.told.get("error"):
        return Reason.IMPORT_STOPPED, f"{job.told['error']} (it is tried again by itself)"
    if job.trouble:
        return Reason.IMPORT_STOPPED, f"the import's pod: {job.trouble}"
    return None


def _progress(observed: Observed) -> ImportStatus | None:
    ledger, job = observed.ledger, _running(observed)
    if ledger is not None and ledger.imported is not Imported.NO:
        before = observed.cluster.status.import_from or ImportStatus()
        update = {"phase": ledger.imported.value, "message": ledger.import_result,
                  "lag_seconds": None, "lag_bytes": None}  # fmt: skip
        return before.model_copy(update=update)
    if job is None or not job.told:
        return ImportStatus(phase="Waiting")
    told = job.told
    try:
        return ImportStatus(
            phase=told["phase"], message=str(told.get("line", ""))[:1024],
            tables=told["tables"], tables_done=told["tables_done"], rows_copied=told["rows"],
            bytes_copied=told["bytes"], bytes_of_tables=told["bytes_of_tables"],
            lag_seconds=told.get("lag_s"), lag_bytes=told.get("lag_bytes"),
        )  # fmt: skip
    except (KeyError, ValidationError):  # of another release
        return ImportStatus(phase="Unknown")
