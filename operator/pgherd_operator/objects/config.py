"""What a member's containers read: the sidecar's ``node.json``, PostgreSQL's two files.

Rendered line by line from values that the CRD has checked; a value cannot begin a new line.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.spec import SCRUB_HOURS, SCRUB_SHARE, Bootstrap
from pgherd_operator.objects import names
from pgherd_operator.objects.model import ANY_HOST, Manifest, Origin, Role, Seat, manifest

DATA = "/var/lib/pgherd"
RUN = "/run/pgherd"
ETC = "/etc/pgherd"
DATABASE = "app"
NODE_FILE = "node.json"
ORIGIN_FILE = "origin"
SOURCE_FILE = "source"
"""Secret and key of the source's connection string, to be named where that is missing."""
SCRIPT_FILE = "bootstrap.sql"
SLOTS = 64
"""Sequences are interleaved by so many, for the life of a herd; readers have larger numbers."""
READERS = 64
"""So many numbers there are for readers."""

_EVENT_TRIGGERS_SINCE = 17
"""The first version of PostgreSQL in which they can be switched off."""
_DEFAULTS = {
    "jit": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "password_encryption": "scram-sha-256",
    "shared_buffers": "128MB",
}
_ACCESS_OURS = (
    # The socket's directory is closed to other accounts. No line of the user's comes before these.
    "local  all  postgres,pgherd_apply  trust",
    "host   all  pgherd_apply      all  reject",
    # The superuser from elsewhere: a member, to make a copy, by its certificate, and an import
    # online; nobody else. The whole name counts, with the cluster's id: the authority may sign for
    # others, too.
    "hostssl all,replication  postgres  all  cert clientname=DN map=members",
    "host   all,replication  postgres  all  reject",
    # The herd's jobs, which read everything and write nothing.
    f"hostssl {DATABASE}  pgherd_jobs  all  cert map=jobs",
    "host   all  pgherd_jobs  all  reject",
)
_ACCESS_DEFAULT = (
    "local  all  all            scram-sha-256",
    "hostssl all  all       all  scram-sha-256",
    "hostssl replication all all scram-sha-256",
)


def config_map(
    cluster: Cluster,
    cluster_id: str,
    seat: Seat,
    members: Iterable[Seat],
    listen_host: str = ANY_HOST,
) -> Manifest:
    """The files of one member.

    Args:
        members: whom a founder founds the herd with; whom a joiner asks.
        listen_host: see Release.
    """
    files = member_files(cluster, cluster_id, seat)
    seats = sorted(members, key=lambda one: one.number)
    node = node_json(cluster, cluster_id, seat, listen_host)
    node["members"] = [_address(cluster, one) for one in seats]
    if "recovery" in node:
        others = [one for one in seats if one.role is Role.DATABASE and one != seat]
        node["recovery"]["partners"] = [_partner(cluster, one) for one in others]
    if files:
        files |= _beginning(cluster, seat)
    data = files | {NODE_FILE: json.dumps(node, indent=2, sort_keys=True) + "\n"}
    name = names.member(cluster.name, seat.number)
    return manifest(cluster, "v1", "ConfigMap", name, {"data": data})


def _beginning(cluster: Cluster, seat: Seat) -> dict[str, str]:
    """What the server's container does when there are no data; read when it starts.

    Making a database belongs to the founding; otherwise the directory is the sidecar's to fill.
    """
    if seat.origin is not Origin.FOUNDER:
        return {ORIGIN_FILE: "copy\n"}
    bootstrap = cluster.spec.bootstrap or Bootstrap()
    imported = bootstrap.import_from is not None and bootstrap.online is None
    seeded = bootstrap.snapshot is not None
    files = {ORIGIN_FILE: "import\n" if imported else "snapshot\n" if seeded else "initdb\n"}
    if imported and bootstrap.import_from is not None:
        dsn = bootstrap.import_from.dsn
        files[SOURCE_FILE] = f"{dsn.name} {dsn.key}\n"
    # A script's last statement may lack its semicolon, and its last line may be a comment.
    script = "".join(f"{one}\n;\n" for one in bootstrap.sql)
    return files | {SCRIPT_FILE: script} if script else files


def same_but_members(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two members' files differ in nothing but the list of the members."""
    return _without_members(one) == _without_members(other)


def _without_members(files: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = dict(files)
    try:
        node = json.loads(files.get(NODE_FILE, ""))
        node.pop("members", None)
        node.get("recovery", {}).pop("partners", None)
    except (AttributeError, TypeError, ValueError):
        return found  # somebody's edit
    return found | {NODE_FILE: node}


def numbers(role: Role) -> range:
    """Those that a member of a role may have."""
    return range(SLOTS + 1, SLOTS + READERS + 1) if role is Role.READER else range(1, SLOTS + 1)


def member_files(cluster: Cluster, cluster_id: str, seat: Seat) -> dict[str, str]:
    """The files of PostgreSQL; a witness has none."""
    if seat.role is Role.WITNESS:
        return {}
    members = f'members  "/^CN={cluster.name}-[0-9]+,O={cluster_id}$"  postgres'
    roles = [members, f"jobs  jobs.{cluster_id}.pgherd  pgherd_jobs"]
    if cluster.spec.online_import is not None:
        name = f"CN={names.import_name(cluster_id)},O={cluster_id}"
        roles.append(f'members  "{name}"  postgres')
    access = [
        "# Written by pgherd.",
        *_ACCESS_OURS,
        *cluster.spec.postgres.pg_hba,
        *_ACCESS_DEFAULT,
    ]
    return {
        "pgherd.conf": _settings(cluster, seat),
        "pg_hba.conf": "\n".join([*access, ""]),
        "pg_ident.conf": "\n".join(["# Written by pgherd.", *roles, ""]),
    }


def node_json(
    cluster: Cluster, cluster_id: str, seat: Seat, listen_host: str = ANY_HOST
) -> dict[str, Any]:
    """The sidecar's configuration, but for the addresses of the members.

    Those are learned from the view once a member is in it, so they make no pod out of date.
    """
    node: dict[str, Any] = {
        "cluster_id": cluster_id,
        "name": names.member(cluster.name, seat.number),
        "number": seat.number,
        "data_dir": f"{DATA}/sidecar",
        "admin_socket": f"{RUN}/server/admin.sock",
        "hook_dir": f"{RUN}/hook",
        "listen_host": listen_host,
        "admin_port": names.ADMIN_PORT,
        "health_port": names.HEALTH_PORT,
        "founder": seat.origin is Origin.FOUNDER,
        "sequence_slots": SLOTS,
        "tls": {"directory": f"{ETC}/tls"},
    }
    if cluster.spec.partition_policy == "Permanent":
        node["partition_policy"] = "permanent"
    if seat.role is Role.WITNESS:
        return node | {"witness": True}
    if seat.role is Role.READER:
        node["reader"] = True
    maintenance = cluster.spec.maintenance
    if (maintenance.scrub_hours, maintenance.scrub_share) != (SCRUB_HOURS, SCRUB_SHARE):
        # Where it is told nothing new a pod stays up to date.
        node["scrub"] = {
            "interval_s": maintenance.scrub_hours * 3600,
            "share": maintenance.scrub_share,
        }
    if cluster.spec.on_divergence == "Pause":
        node["on_divergence"] = "pause"
    if cluster.spec.capture == "SQL":
        node["capture"] = "sql"
    if not maintenance.rebuild_diverged:
        node["replaced"] = False
    postgres = {
        "host": f"{RUN}/server",
        "port": names.POSTGRES_PORT,
        "database": DATABASE,
        "tcp_host": names.address(cluster.name, cluster.namespace, seat.number),
    }
    if seat.origin is Origin.FOUNDER:
        return node | {"postgres": postgres}  # its database is made beside it, not copied
    recovery = {
        "automatic": True,
        "runs_server": False,
        "postgres_bin": f"/usr/lib/postgresql/{cluster.spec.postgres.version}/bin",
        "data_directory": f"{DATA}/pgdata",
        "server_log": "/dev/null",
    }
    return node | {"postgres": postgres, "recovery": recovery}


def _address(cluster: Cluster, seat: Seat) -> dict[str, Any]:
    return {
        "name": names.member(cluster.name, seat.number),
        "number": seat.number,
        "host": names.address(cluster.name, cluster.namespace, seat.number),
        "port": names.PEER_PORT,
        "witness": seat.role is Role.WITNESS,
    }


def _partner(cluster: Cluster, seat: Seat) -> dict[str, Any]:
    return {
        "member": names.member(cluster.name, seat.number),
        "host": names.address(cluster.name, cluster.namespace, seat.number),
        "port": names.POSTGRES_PORT,
    }


def _settings(cluster: Cluster, seat: Seat) -> str:
    own = {
        "cluster_name": names.member(cluster.name, seat.number),
        "hba_file": f"{ETC}/config/pg_hba.conf",
        "ident_file": f"{ETC}/config/pg_ident.conf",
        "listen_addresses": "*",
        "port": str(names.POSTGRES_PORT),
        "ssl": "on",
        "ssl_ca_file": f"{ETC}/tls/ca.crt",
        "ssl_cert_file": f"{ETC}/tls/tls.crt",
        "ssl_key_file": f"{ETC}/tls/tls.key",
        "unix_socket_directories": f"{RUN}/server",
        "unix_socket_permissions": "0700",
        "wal_level": "replica",
    }
    if int(cluster.spec.postgres.version) >= _EVENT_TRIGGERS_SINCE:
        own["event_triggers"] = "on"  # they capture DDL
    settings = _DEFAULTS | cluster.spec.postgres.parameters | own
    lines = [f"{name} = '{_quoted(value)}'" for name, value in sorted(settings.items())]
    return "\n".join(["# Written by pgherd.", *lines, ""])


def _quoted(value: str) -> str:
    """A value inside single quotes; a line end is a blank, for the file knows no other escape."""
    return value.replace("\\", "\\\\").replace("'", "''").replace("\n", " ").replace("\r", " ")
