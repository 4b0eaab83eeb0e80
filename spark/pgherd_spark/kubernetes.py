"""The jobs on Kubernetes: the driver's program, started with an order written by the operator.

Members are reached as the order says: their sidecars and their servers by the certificate in
``CERTIFICATES``, the servers as ``pgherd_jobs``, which can write nothing. Spark is the one that a
SparkApplication has started, or with ``--master`` one in this process. The outcome goes to the
container's termination message, which the operator reads; the exit status is 0 when the job could
be done, whatever it has found.
"""

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pgherd_sidecar.client.admin import AdminError, RemoteAdminClient
from pgherd_sidecar.env.network.tls import certified_name
from psycopg.conninfo import make_conninfo
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pgherd_spark.checking import report as reports
from pgherd_spark.checking.check import check
from pgherd_spark.checking.findings import Findings
from pgherd_spark.progress import Progress, served
from pgherd_spark.reading.cluster import Cluster, JobError, NoSparkError, cluster
from pgherd_spark.reading.comparison import CheckOptions
from pgherd_spark.reading.leases import LeaseError, Member
from pgherd_spark.reading.pace import FULL
from pgherd_spark.snapshots.snapshot import SnapshotOptions, snapshot
from pgherd_spark.storing.layout import MANIFEST, expire
from pgherd_spark.storing.stores import at
from pgherd_spark.stream.reach import CA, CERTIFICATE, KEY, Certificates

CERTIFICATES = Path("/etc/pgherd/tls")
OUTCOME = Path("/dev/termination-log")
PROGRESS_PORT = 7804
ROLE = "pgherd_jobs"
_LOOK_S = 2.0
_NAMED, _NAME_LENGTH, _ERROR_LENGTH = 10, 80, 2000
"""What is told of many names, a long one, an error."""
_MESSAGE_BYTES = 4096
"""Kubernetes cuts a longer termination message, and then it is no JSON."""


class Address(BaseModel):
    """A member with a database, and where it is; a reader comes after those that take writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    host: str
    reader: bool = False

    @property
    def state_when_up(self) -> str:
        """What its sidecar says then."""
        return "reader" if self.reader else "primary"


class Order(BaseModel):
    """What the operator wants done; ``pgherd_operator.jobs.objects`` writes it.

    Attributes:
        destination: where snapshots or reports are kept, as ``stores.at`` understands it.
        endpoint: of an S3-compatible server.
        read: how many members a snapshot is read from.
        keep: how many snapshots of this herd to leave there.
        share: percent of one core of each member that may be taken, see ``pace``.
        allow_missing: leave out members that are not up.
        patience_s: how long to wait for those that are not, before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Literal["snapshot", "check"]
    cluster_id: str
    database: str
    postgres_port: int
    admin_port: int
    members: Annotated[tuple[Address, ...], Field(min_length=1)]
    destination: str | None = None
    endpoint: str | None = None
    read: Annotated[int, Field(ge=1)] = 1
    keep: Annotated[int, Field(ge=1)] | None = None
    part_bytes: Annotated[int, Field(ge=8192)] = 256 << 20
    share: Annotated[int, Field(ge=1, le=FULL)] = FULL
    max_rows: Annotated[int, Field(ge=0)] = 100
    allow_missing: bool = False
    patience_s: Annotated[float, Field(ge=0)] = 120.0


Outcome = dict[str, Any]


@click.command()
@click.option("--master", help="Of a Spark of this process's own, like local[2].")
@click.option("--memory", default="1g", help="Of that Spark's heap.")
@click.argument("order")
def main(master: str | None, memory: str, order: str) -> None:
    """Do the job that ORDER describes, in JSON."""
    outcome = run(order, master, memory)
    OUTCOME.write_bytes(message(outcome))
    click.echo(json.dumps(outcome))
    raise SystemExit(1 if "error" in outcome else 0)


def message(outcome: Outcome) -> bytes:
    """The outcome as JSON that a termination message has room for; the longest lists are cut."""
    told = dict(outcome)
    while len(text := _encoded(told)) > _MESSAGE_BYTES:
        longest = max(told, key=lambda name: len(_encoded(told[name])))
        told[longest] = told[longest][: len(told[longest]) // 2]
    return text


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def run(order: str, master: str | None, memory: str) -> Outcome:
    """Do a job, and say how it ended: ``error`` is there if it could not be done."""
    progress = Progress()
    try:
        asked = Order.model_validate_json(order)
        name = f"pgherd {asked.job}"
        with served(progress, PROGRESS_PORT), cluster(name, master, memory) as spark:
            spark.on_progress = progress.count
            return asyncio.run(_do(asked, spark, progress))
    except ValidationError as error:
        return {"error": f"the operator and this image do not fit: {error.errors()[0]['msg']}"}
    except (JobError, LeaseError, NoSparkError, OSError) as error:
        return {"error": str(error)[:_ERROR_LENGTH]}


async def _do(order: Order, spark: Cluster, progress: Progress) -> Outcome:
    members, left_out = await _ready(order, progress)
    if order.job == "check":
        asked = CheckOptions(order.part_bytes, order.max_rows, share=order.share)
        found = await check(spark, members, asked, progress.say, left_out)
        return _told(order, found, spark)
    assert order.destination is not None
    store = at(order.destination, order.endpoint)
    wanted = SnapshotOptions(
        to=store,
        read=tuple(members)[: order.read],
        programs=_programs(),
        cluster_id=order.cluster_id,
        part_bytes=order.part_bytes,
        share=order.share,
    )
    written = await snapshot(spark, members, wanted, progress.say)
    removed = expire(store, order.cluster_id, order.keep) if order.keep is not None else []
    manifest = json.loads(written.get(MANIFEST))
    parts = [part for table in manifest["tables"] for part in table["parts"]]
    return {
        "gid": manifest["gid"],
        "location": str(written),
        "tables": len(manifest["tables"]),
        "rows": sum(table["rows"] for table in manifest["tables"]),
        "bytes": sum(part["bytes"] for part in parts),
        "removed": len(removed),
    }


def _told(order: Order, findings: Findings, spark: Cluster) -> Outcome:
    """The verdict in few words; all of it goes to the report, where one is wanted."""
    location = None
    if order.destination is not None:
        directory = Path(order.destination) / f"check-{findings.started:%Y%m%dT%H%M%S}"
        reports.write(spark, findings, directory)
        location = str(directory)
    different = [table.name for table in findings.tables if table.verdict == "different"]
    definitions = [f"{one.kind} {one.name}" for one in findings.definitions]
    not_compared = [table.name for table in findings.tables if table.reason is not None]
    return {
        "verdict": findings.verdict,
        "gid": findings.gid,
        "location": location,
        "tables": len(findings.tables),
        "different_tables": _some(different),
        "different_definitions": _some(definitions),
        "different_rows": sum(table.different_rows for table in findings.tables),
        "not_compared": _some(
            [*not_compared, *findings.changing, *findings.unread, *findings.beyond]
        ),
        "odd_members": list(findings.odd_members),
        "members": list(findings.members),
        "left_out": [name[:_NAME_LENGTH] for name in findings.left_out],
    }


def _some(names: list[str]) -> list[str]:
    return [name[:_NAME_LENGTH] for name in names[:_NAMED]]


async def _ready(order: Order, progress: Progress) -> tuple[dict[str, Member], list[str]]:
    """The members to read, once all that are asked for are up; and those left out, with why.

    Raises:
        JobError: one is not, and may not be left out, or none takes writes.
    """
    members = _members(order)
    wanted = {address.name: address.state_when_up for address in order.members}
    progress.say(f"asking {len(members)} members")
    states = await _states(members)
    try:
        async with asyncio.timeout(order.patience_s):
            while states != wanted:
                await asyncio.sleep(_LOOK_S)
                states = await _states(members)
    except TimeoutError:
        away = [f"{name}: {state}" for name, state in states.items() if state != wanted[name]]
        if not order.allow_missing or "primary" not in states.values():
            raise JobError(f"not every member is up ({'; '.join(away)})") from None
        progress.say(f"left out: {'; '.join(away)}")
    up = {name: member for name, member in members.items() if states[name] == wanted[name]}
    return up, [f"{name}: {state}" for name, state in states.items() if name not in up]


def _members(order: Order) -> dict[str, Member]:
    ca, certificate, key = (CERTIFICATES / name for name in (CA, CERTIFICATE, KEY))
    context = Certificates(CERTIFICATES, order.cluster_id).context()

    def reached(address: Address) -> Member:
        certified = certified_name(address.name, order.cluster_id)
        conninfo = make_conninfo(
            host=address.host, port=order.postgres_port, dbname=order.database, user=ROLE,
            sslmode="verify-full", sslrootcert=str(ca), sslcert=str(certificate), sslkey=str(key),
        )  # fmt: skip
        admin = RemoteAdminClient(address.host, order.admin_port, context, certified)
        return Member(address.name, admin, conninfo)

    return {address.name: reached(address) for address in order.members}


async def _states(members: Mapping[str, Member]) -> dict[str, str]:
    async def ask(member: Member) -> str:
        try:
            return (await member.admin.status()).state
        except AdminError as error:
            return str(error)

    return dict(zip(members, await asyncio.gather(*map(ask, members.values())), strict=True))


def _programs() -> Path:
    """The directory of PostgreSQL's programs; here they are on the PATH.

    Raises:
        JobError: they are not.
    """
    psql = shutil.which("psql")
    if psql is None:
        raise JobError("PostgreSQL's programs are not in this image")
    return Path(psql).parent


if __name__ == "__main__":
    main()
