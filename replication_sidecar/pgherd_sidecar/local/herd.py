"""The herd directory: what ``herd.json`` holds, and where each node keeps its files.

``herd.json`` says who has a directory here, and at which ports: written by the first ``up``,
changed by ``add`` and ``remove``. Who is a member, and all else, the herd's processes are asked.
Layout of the directory::

    herd.json  herd.lock
    n1/pgdata  n1/sidecar   the server's and the sidecar's data
    n1/node.json  n1/pgpass  the sidecar's configuration, and passwords as libpq reads them
    n1/overlay              configuration files of the server that are this node's own
    tls  n1/tls             certificates, see certificates.py
    n1/sidecar.log  n1/postgres.log  n1/log/    what they say
    n1/run  n1/hook         sockets (elsewhere when their path would be too long)
"""

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pgherd_sidecar.agent.base.defaults import (
    FINGERPRINT_EVERY,
    SCRUB_INTERVAL_S,
    SCRUB_SHARE,
    SERVICES,
)
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.env.storage import durable

FORMAT = 1
HERD_FILE = "herd.json"
SOCKET_PATH_MAX = 107
"""Longest path of a Unix socket on Linux, in bytes."""
_LONGEST_SOCKET = "/n1023/hook/.s.PGSQL.65535"
PEER_PORT_OFFSET = 100
HEALTH_PORT_OFFSET = 200
SLOTS = 8
"""Numbers that the sequences are interleaved by: the most members that a herd can have."""
_NO_PATH = re.compile(r'["$`\\\x00-\x1f]')
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_TAKEN = SERVICES | {"tls"}
"""Certificates of these names may be in other hands; and the last one is a directory."""


class HerdNodeOrigin(BaseModel):
    """What the database of a node that joins is made by and from.

    Attributes:
        postgres_bin: its own programs of PostgreSQL; None: the herd's.
        method: how a partner's database is copied, then and whenever it is rebuilt.
        snapshot: where the snapshot is from which it joins, in place of a copy: a directory, or
            ``s3://BUCKET/PREFIX``.
        snapshot_endpoint: URL of that bucket's server, if it was named.
    """

    model_config = ConfigDict(frozen=True)

    postgres_bin: Path | None = None
    method: Literal["basebackup", "dump"] = "basebackup"
    snapshot: str | None = None
    snapshot_endpoint: str | None = None


class TakenServer(BaseModel):
    """The plain server that a herd takes over: ``pgherd found``.

    Attributes:
        dsn: its connection string, without a password.
        system: the server's own number, which no other server has.
        database: of that server.
        state: its rows are on their way, or the herd has taken writes in its place, or nothing is
            left to do.
    """

    model_config = ConfigDict(frozen=True)

    dsn: str
    system: str
    database: str
    state: Literal["begun", "switched", "done"] = "begun"


NodeKind = Literal["database", "witness", "reader"]
COPIED = HerdNodeOrigin()
"""A base backup by the herd's programs."""


class HerdNode(BaseModel):
    """One node: its stable number and name, and the ports of its server, its log and its health.

    A witness has a log and a vote, and no server. A reader has both, and neither votes nor writes.
    """

    model_config = ConfigDict(frozen=True)

    number: Annotated[int, Field(ge=1)]
    name: str
    port: Annotated[int, Field(ge=1, le=65535)]
    peer_port: Annotated[int, Field(ge=1, le=65535)]
    witness: bool = False
    reader: bool = False
    origin: HerdNodeOrigin = COPIED

    @property
    def purpose(self) -> str:
        """What it does when all is well."""
        return "votes" if self.witness else "follows" if self.reader else "takes writes"

    @property
    def health_port(self) -> int:
        """Where the sidecar tells balancers how the node is."""
        return self.port + HEALTH_PORT_OFFSET


class Herd(BaseModel):
    """The content of ``herd.json``. Secret: it holds the passwords.

    Attributes:
        taken: the server that it was made of, if it was made of one.
        founded: all of the first members have taken writes; whoever has no log now has to join.
        slots: no member that takes writes has a higher number.
        evict_s: a member that was silent for so long is thrown out of the view; 0: none ever is.
        split_s: members that were without a majority for so long become another cluster; 0: never.
        scrub_s: all rows of all members are compared once in so long; 0: never.
        scrub_share: percent of one core that this may take.
        fingerprint_every: one of so many transactions ships hashes of its rows.
        capture: by the native module where it is installed, or always in SQL.
        on_divergence: whether writes go on while one whole database is left, and others get copies.
    """

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    cluster_id: UUID
    directory: Path
    sockets: Path
    postgres_bin: Path
    port_base: int
    superuser_password: str
    app_password: str
    taken: TakenServer | None = None
    founded: bool = False
    slots: int = SLOTS
    evict_s: Annotated[float, Field(ge=0)] = 0
    split_s: Annotated[float, Field(ge=0)] = 0
    scrub_s: Annotated[float, Field(ge=0)] = SCRUB_INTERVAL_S
    scrub_share: Annotated[float, Field(gt=0, le=100)] = SCRUB_SHARE
    fingerprint_every: Annotated[int, Field(ge=1)] = FINGERPRINT_EVERY
    capture: Literal["auto", "sql"] = "auto"
    on_divergence: Literal["rebuild", "pause"] = "rebuild"
    members: tuple[HerdNode, ...]

    @property
    def databases(self) -> tuple[HerdNode, ...]:
        """The members that are no witnesses."""
        return tuple(member for member in self.members if not member.witness)

    @property
    def writers(self) -> tuple[HerdNode, ...]:
        """The members that take writes."""
        return tuple(member for member in self.databases if not member.reader)

    @property
    def voters(self) -> tuple[HerdNode, ...]:
        """The members that are no readers."""
        return tuple(member for member in self.members if not member.reader)

    def member(self, name: str) -> HerdNode:
        """Return the member of that name.

        Raises:
            HerdError: there is none.
        """
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise HerdError(f"unknown node {name}: this herd has {names}")

    def grown(
        self,
        name: str | None,
        *,
        kind: NodeKind = "database",
        origin: HerdNodeOrigin = COPIED,
    ) -> tuple["Herd", HerdNode]:
        """Return the herd with a new member, and that member.

        It has the lowest free number. A reader has the highest that would let it be promoted, so
        that those which others get are free for longer, or one that takes no sequence's place.

        Args:
            name: its name; by default the next one that is free.
            kind: what it is for.
            origin: what its database is made by and from.

        Raises:
            HerdError: the name can't be used, there is no number left, or there would be as many
                witnesses as databases.
        """
        witness, reader = kind == "witness", kind == "reader"
        writers = len(self.writers)
        if witness and len(self.voters) - writers + 1 >= writers:
            raise _too_many_witnesses(writers, "add a node with a database first")
        numbers = {member.number for member in self.members}
        within = [n for n in range(1, self.slots + 1) if n not in numbers]
        beyond = [n for n in range(self.slots + 1, PEER_PORT_OFFSET) if n not in numbers]
        choice = (*reversed(within), *beyond) if reader else within
        if not choice:
            remedy = "promote a reader, or remove a node" if not reader else "remove one first"
            raise HerdError(f"this herd has numbers for {self.slots} nodes: {remedy}")
        number = choice[0]
        names = {member.name for member in self.members}
        if name is None:
            stem, first = ("w", 1) if witness else ("r", 1) if reader else ("n", number)
            free = (f"{stem}{n}" for n in range(first, first + len(names) + 1))
            name = next(one for one in free if one not in names)
        if name in names or not is_name(name):
            raise HerdError(f"a node can't be called {name}: choose another name, like n{number}")
        member = _member(self.port_base, number, name, witness=witness)
        member = member.model_copy(update={"origin": origin, "reader": reader})
        members = sorted((*self.members, member), key=lambda one: one.number)
        return self.model_copy(update={"members": tuple(members)}), member

    def promoted(self, reader: HerdNode) -> tuple["Herd", HerdNode]:
        """Return the herd in which a reader is a node that votes and takes writes, and that node.

        Raises:
            HerdError: it is no reader, or its number is none of those by which sequences go.
        """
        if not reader.reader:
            raise HerdError(f"{reader.name} is no reader: it {reader.purpose} already")
        if reader.number > self.slots:
            raise HerdError(
                f"{reader.name} has number {reader.number}, and only the first {self.slots} can "
                "take writes: add a node by `pgherd local add`"
            )
        node = reader.model_copy(update={"reader": False})
        members = tuple(node if member == reader else member for member in self.members)
        return self.model_copy(update={"members": members}), node

    def without(self, gone: HerdNode) -> "Herd":
        """Return the herd without a member."""
        members = tuple(member for member in self.members if member != gone)
        return self.model_copy(update={"members": members})

    def separate(self, cluster_id: UUID, directory: Path, members: tuple[HerdNode, ...]) -> "Herd":
        """Return the herd that some of the members become, with ports of its own for new ones.

        Raises:
            HerdError: no herd can be in this directory.
        """
        return self.model_copy(
            update={
                "cluster_id": cluster_id,
                "directory": directory,
                "sockets": _sockets(directory, cluster_id),
                "port_base": self.port_base + 2 * self.slots,
                "founded": True,
                "members": members,
            }
        )

    def programs_of(self, member: HerdNode) -> Path:
        """Directory of PostgreSQL's programs for this member."""
        return member.origin.postgres_bin or self.postgres_bin

    def node(self, member: HerdNode | str) -> "NodePaths":
        """Where a member, or one of this name, keeps its files."""
        name = member if isinstance(member, str) else member.name
        return NodePaths(self.directory / name, self.sockets / name)

    def make_sockets(self, member: HerdNode) -> None:
        """Make the directories in which a member's sockets lie.

        Raises:
            HerdError: another account has made one before.
        """
        if self.sockets != self.directory:
            with contextlib.suppress(FileExistsError):
                self.sockets.mkdir(mode=0o700)
            self.require_own_sockets(os.geteuid())
            self.sockets.chmod(0o700)  # a former version left that to the umask
        paths = self.node(member)
        for directory in (paths.run, paths.hook):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def require_own_sockets(self, account: int) -> None:
        """Check that no other account can replace the sockets, if their directories are there.

        In ``/tmp`` whoever is first has the name, but nobody can take it from him.

        Raises:
            HerdError: one can.
        """
        with contextlib.suppress(FileNotFoundError):
            found = self.sockets.lstat()
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == account
            if not is_own or found.st_mode & stat.S_IWOTH:
                raise HerdError(
                    f"{self.sockets} is not a directory of this herd's account alone, and the"
                    " herd's sockets lie in it: remove it and repeat the command"
                )

    def dsn(self, member: HerdNode) -> str:
        """Connection string of the superuser; works from any local account."""
        return f"postgresql://postgres:{self.superuser_password}@127.0.0.1:{member.port}/app"

    def app_dsn(self, member: HerdNode) -> str:
        """Connection string of the ordinary role ``app``."""
        return f"postgresql://app:{self.app_password}@127.0.0.1:{member.port}/app"

    def silent_dsn(self, member: HerdNode) -> str:
        """Connection string of ``app`` that names a file with the password in its place.

        Whoever may read the file may use it: the herd's account and root.
        """
        return f"postgresql://app@127.0.0.1:{member.port}/app?{self._passfile(member)}"

    def application_dsn(self, *, password: bool) -> str:
        """Connection string for an application: the first node that takes writes.

        Args:
            password: it is in the string; otherwise the string names a file, as ``silent_dsn``.
        """
        user = f"app:{self.app_password}" if password else "app"
        hosts = _hosts(self.writers)
        # A machine that is gone answers nothing: then the next one is tried after this time.
        how = "target_session_attrs=read-write&connect_timeout=3"
        found = f"postgresql://{user}@{hosts}/app?{how}"
        return found if password else f"{found}&{self._passfile(self.writers[0])}"

    def reading_dsn(self) -> str:
        """Connection string for what only reads: any node, by chance; from libpq 16 on."""
        where = f"postgresql://app:{self.app_password}@{_hosts(self.databases)}/app"
        return f"{where}?target_session_attrs=any&load_balance_hosts=random&connect_timeout=3"

    def _passfile(self, member: HerdNode) -> str:
        return f"passfile={quote(str(self.node(member).passfile))}"


class NodePaths:
    """Files and directories of one node."""

    def __init__(self, root: Path, sockets: Path) -> None:
        self.root = root
        self.pgdata = root / "pgdata"
        self.sidecar_data = root / "sidecar"
        self.config = root / "node.json"
        self.tls = root / "tls"
        self.passfile = root / "pgpass"
        self.overlay = root / "overlay"
        self.sidecar_pid = root / "sidecar.pid"
        self.sidecar_log = root / "sidecar.log"
        self.postgres_log = root / "postgres.log"
        self.log_dir = root / "log"
        self.run = sockets / "run"
        self.hook = sockets / "hook"
        self.admin_socket = self.run / "admin.sock"


def new_herd(
    directory: Path,
    *,
    nodes: int,
    port_base: int,
    postgres_bin: Path,
    witnesses: int = 0,
) -> Herd:
    """Describe a herd that does not exist yet; what may be changed later is as by default.

    Raises:
        HerdError: the ports do not fit, the witnesses are too many, or no herd can be there.
    """
    total = nodes + witnesses
    if nodes < 1 or total >= PEER_PORT_OFFSET:
        raise HerdError(f"a herd has 1 to {PEER_PORT_OFFSET - 1} nodes: choose another --nodes")
    if not 0 <= witnesses < nodes:
        raise _too_many_witnesses(nodes, "choose another --witness")
    if not 1 <= port_base <= 65535 - HEALTH_PORT_OFFSET - max(total, SLOTS):
        raise HerdError(f"ports from {port_base} up do not exist: choose another --port-base")
    cluster_id = uuid4()
    return Herd(
        cluster_id=cluster_id,
        directory=directory,
        sockets=_sockets(directory, cluster_id),
        postgres_bin=postgres_bin,
        port_base=port_base,
        superuser_password=secrets.token_urlsafe(18),
        app_password=secrets.token_urlsafe(18),
        slots=max(SLOTS, total),
        members=(
            *(_member(port_base, number, f"n{number}") for number in range(1, nodes + 1)),
            *(
                _member(port_base, nodes + number, f"w{number}", witness=True)
                for number in range(1, witnesses + 1)
            ),
        ),
    )


def _hosts(members: Iterable[HerdNode]) -> str:
    return ",".join(f"127.0.0.1:{member.port}" for member in members)


def require_plain(directory: Path) -> None:
    """Check that a server can have its files below this directory.

    Raises:
        HerdError: it can't.
    """
    if _NO_PATH.search(str(directory)):
        raise HerdError(
            f"{str(directory)!r} has a character that a shell would not take as it is, and"
            " PostgreSQL's pg_ctl has it read by one: choose another directory"
        )


def _sockets(directory: Path, cluster_id: UUID) -> Path:
    """Where the sockets lie: elsewhere if libpq could not find them.

    Raises:
        HerdError: no herd can be in this directory.
    """
    require_plain(directory)
    too_long = len(os.fsencode(directory)) + len(_LONGEST_SOCKET) > SOCKET_PATH_MAX
    is_list = "," in str(directory)  # of several hosts
    return Path(f"/tmp/pgherd-{cluster_id.hex[:12]}") if too_long or is_list else directory


def is_name(name: str) -> bool:
    """Say whether a node can have this name: directories and certificates have it, too."""
    return name not in _TAKEN and _NAME.fullmatch(name) is not None


def _too_many_witnesses(databases: int, remedy: str) -> HerdError:
    return HerdError(f"{databases} nodes can have {databases - 1} witnesses: {remedy}")


def _member(port_base: int, number: int, name: str, *, witness: bool = False) -> HerdNode:
    return HerdNode(
        number=number,
        name=name,
        port=port_base + number,
        peer_port=port_base + PEER_PORT_OFFSET + number,
        witness=witness,
    )


def save(herd: Herd) -> None:
    """Write ``herd.json``."""
    write(herd.directory / HERD_FILE, herd)


def write(path: Path, herd: BaseModel) -> None:
    """Write a description, readable by the owner only, whole or not at all."""
    durable.replace(path.parent, path.name, f"{herd.model_dump_json(indent=2)}\n".encode(), 0o600)


def is_herd(directory: Path) -> bool:
    """Say whether a directory is a herd's."""
    return (directory / HERD_FILE).is_file()


def load(directory: Path) -> Herd:
    """Read the description of the herd in ``directory``.

    Raises:
        HerdError: no herd, no directory, not readable, damaged, or a copy of one elsewhere; or
            another account has the directory of its sockets.
    """
    path = directory / HERD_FILE
    try:
        herd = Herd.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise HerdError(
            f"{directory} is not a herd directory: create a herd with `pgherd local up` or "
            "give the --dir of one"
        ) from error
    except NotADirectoryError as error:
        raise HerdError(f"{directory} is a file: give the herd's directory") from error
    except OSError as error:
        remedy = ": only the account that owns the herd may" if error.errno == errno.EACCES else ""
        raise HerdError(f"cannot read {path}: {error.strerror}{remedy}") from error
    except ValidationError as error:
        raise HerdError(f"{path} is damaged ({error.errors()[0]['msg']}): restore it") from error
    if herd.format != FORMAT:
        raise HerdError(f"{path} has format {herd.format}: use the pgherd that wrote it")
    if herd.directory != directory:
        raise HerdError(
            f"{directory} is a copy of another herd's directory, {herd.directory}: "
            "a herd can be neither copied nor moved; use the original or an empty directory"
        )
    if herd.sockets != directory:
        herd.require_own_sockets(path.stat().st_uid)
    return herd
