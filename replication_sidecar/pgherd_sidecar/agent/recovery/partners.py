"""The partners' side of a rebuild, as the joiner sees it: who is fit, its checkpoint, its lease.

All of it is SQL on the partners' servers (``062_recovery.sql``), so a partner keeps no state but
the lease, and needs to do nothing. Keeps no connection between calls.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from pgherd_sidecar.agent.base.config import (
    NodeConfig,
    PartnerServer,
    RecoverySettings,
    is_loopback,
)
from pgherd_sidecar.agent.checkpoint import certstate
from pgherd_sidecar.agent.membership.roster import at_home, contact
from pgherd_sidecar.agent.recovery.columns import columns_of
from pgherd_sidecar.core.consensus import Membership
from pgherd_sidecar.core.replication.checkpoint import CheckpointError
from pgherd_sidecar.env.network.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from pgherd_sidecar.pg import trusted

_CONNECT_S = 5
_ANSWER_S = 30
_LOOK_S = 0.5
LEASE_S = 600.0
"""For so long a partner keeps its log for a joiner that has fallen silent."""


class NoPartnerError(Exception):
    """Nobody can be copied at present; the message says why."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A member that takes writes and can be copied.

    Attributes:
        gid: up to here its database goes.
        copies: how many copies of it are being made.
        major: version of its PostgreSQL.
    """

    server: PartnerServer
    gid: int
    copies: int
    major: int = 0


def conninfo(config: NodeConfig, recovery: RecoverySettings, server: PartnerServer) -> str:
    """How to connect to a partner's server; on another machine both prove who they are."""
    passfile = {} if recovery.passfile is None else {"passfile": str(recovery.passfile)}
    return psycopg.conninfo.make_conninfo(
        host=server.host,
        port=server.port,
        user=recovery.user,
        dbname=config.postgres.database,
        application_name=f"pgherd copy {config.name}",
        connect_timeout=_CONNECT_S,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=30_000,
        options=trusted.options(),
        **passfile,
        **_proofs(config, server),
    )


def _proofs(config: NodeConfig, server: PartnerServer) -> dict[str, str]:
    if config.tls is None or is_loopback(server.host):
        return {}
    files = {"sslrootcert": CA_FILE, "sslcert": CERTIFICATE_FILE, "sslkey": KEY_FILE}
    return {"sslmode": "verify-full"} | {
        option: str(config.tls.directory / file) for option, file in files.items()
    }


def choose_partner(offers: list[Offer], wanted: str | None, major: int = 0) -> Offer:
    """The partner that is named or, by default, has least to do and is least behind.

    Args:
        offers: who can be copied.
        wanted: who is named.
        major: its version of PostgreSQL must be this one; 0: any.

    Raises:
        NoPartnerError: none of them is.
    """
    fit = [offer for offer in offers if wanted in (None, offer.server.member)]
    whom = "no other member" if wanted is None else wanted
    if not fit:
        raise NoPartnerError(f"{whom} takes writes and can be copied")
    fit = [offer for offer in fit if major in (0, offer.major)]
    if not fit:
        raise NoPartnerError(
            f"{whom} with PostgreSQL {major} takes writes: a base backup needs the same major "
            "version, a dump does not"
        )
    return min(fit, key=lambda offer: (offer.copies, -offer.gid, offer.server.member))


def servers_of(config: NodeConfig, membership: Membership) -> list[PartnerServer]:
    """Return where the databases of the other members can be copied, by the log's word."""
    contacts = {one.name: contact(one) for one in membership.members if one.name != config.name}
    return [
        PartnerServer(member=name, host=at_home(config, at.postgres_host), port=at.postgres_port)
        for name, at in contacts.items()
        if at.postgres_host
    ]


class Partners:
    """The other members' servers.

    Args:
        config: this node's.
        recovery: its part for this.
        servers: returns those that can be asked at the moment.
    """

    def __init__(
        self,
        config: NodeConfig,
        recovery: RecoverySettings,
        servers: Callable[[], Iterable[PartnerServer]],
    ) -> None:
        self._config = config
        self._recovery = recovery
        self._servers = servers

    async def offers(self) -> list[Offer]:
        """Ask all; who does not answer or is not primary makes none."""
        answers = await asyncio.gather(*(self._offer(one) for one in self._servers()))
        return [offer for offer in answers if offer is not None]

    async def state(
        self, server: PartnerServer, wanted: int
    ) -> "certstate.CertificationState | None":
        """Have a partner keep its log, and return its checkpoint; None if it has none.

        Args:
            server: the partner.
            wanted: a checkpoint before this position is of no use; the partner makes one soon.

        Raises:
            NoPartnerError: the partner is gone, or its checkpoint is damaged.
        """
        try:
            async with self._connection(server) as connection:
                await self._hold(connection, wanted, 0)
                cursor = connection.cursor(binary=True)
                await cursor.execute("SELECT pgherd.certification_state()")
                (data,) = await cursor.fetchone() or (None,)
                if data is None:
                    return None
                state = certstate.unpack(data)
                await self._hold(connection, wanted, state.needed_base.position)
                return state
        except (psycopg.Error, TimeoutError, CheckpointError) as error:
            raise NoPartnerError(f"{server.member}: {error or 'no answer'}") from error

    async def fingerprint(self, server: PartnerServer) -> str:
        """Ask a partner how it hashes keys.

        Raises:
            NoPartnerError: it is gone.
        """
        try:
            async with self._connection(server) as connection:
                rows = await connection.execute("SELECT pgherd.key_fingerprint()")
                (fingerprint,) = await rows.fetchone() or ("",)
                return str(fingerprint)
        except (psycopg.Error, TimeoutError) as error:
            raise NoPartnerError(f"{server.member}: {error or 'no answer'}") from error

    async def columns(self) -> dict[str, list[str]]:
        """Ask a partner for the columns of its tables, see ``columns``.

        Raises:
            NoPartnerError: nobody answers.
        """
        for offer in await self.offers():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with self._connection(offer.server) as connection:
                    return await columns_of(connection)
        raise NoPartnerError("no other member takes writes and tells of its tables")

    async def log_base(self) -> int:
        """Return where the shortest of the logs begins, of those who can be asked."""
        return max(await self._log_bases(), default=0)

    async def _log_bases(self) -> list[int]:
        bases: list[int] = []
        for server in self._servers():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with self._connection(server) as connection:
                    rows = await connection.execute("SELECT pgherd.log_base()")
                    bases += [base for (base,) in await rows.fetchall()]
        return bases

    async def hold_log(self, position: int) -> None:
        """Take or renew the lease on the log after ``position``, on all that can be reached."""
        for server in self._servers():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with self._connection(server) as connection:
                    await self._hold(connection, 0, position)

    async def keep_log(
        self, position: int, needed: int, behind: Callable[[], int] = lambda: 0
    ) -> None:
        """Renew the lease until the log after ``needed`` is lost.

        Nobody keeps more than ``log_hold_bytes`` for a joiner.

        Args:
            position: what the lease is for.
            needed: the log is lost when all servers have answered, and none has it.
            behind: returns where the log begins of who feeds this member, 0 if it does not need to
                know. The log is lost, too, when that is after ``needed``.
        """
        while True:
            await self.hold_log(position)
            bases = await self._log_bases()
            all_said = len(bases) == len(list(self._servers()))
            if behind() > needed or (all_said and min(bases, default=0) > needed):
                return
            await asyncio.sleep(LEASE_S / 10)

    async def release(self) -> None:
        """Give the leases back."""
        for server in self._servers():
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with self._connection(server) as connection:
                    await connection.execute(
                        "SELECT pgherd.release_log(%s)", (self._config.number,)
                    )

    async def watch_clients(self, server: PartnerServer, tell: Callable[[bool], None]) -> None:
        """Tell over and over whether a partner's clients are at work, until cancelled."""
        while True:
            tell(await self._has_clients(server))
            await asyncio.sleep(_LOOK_S)

    async def _has_clients(self, server: PartnerServer) -> bool:
        """Whether its clients are at work; as if they were when it does not say."""
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with self._connection(server) as connection:
                rows = await connection.execute("SELECT pgherd.clients_at_work()")
                (at_work,) = await rows.fetchone() or (True,)
                return bool(at_work)
        return True

    async def _offer(self, server: PartnerServer) -> Offer | None:
        with contextlib.suppress(psycopg.Error, TimeoutError):
            async with self._connection(server) as connection:
                cursor = await connection.execute(
                    "SELECT cluster_id, writable, gid, copies FROM pgherd.partner_status()"
                )
                cluster, writable, gid, copies = await cursor.fetchone() or (None, False, 0, 0)
                if cluster == str(self._config.cluster_id) and writable:
                    return Offer(server, gid, copies, connection.info.server_version // 10000)
        return None

    async def _hold(self, connection: psycopg.AsyncConnection[Any], wanted: int, held: int) -> None:
        await connection.execute(
            "SELECT pgherd.hold_log(%s, %s, %s, %s)", (self._config.number, wanted, held, LEASE_S)
        )

    @contextlib.asynccontextmanager
    async def _connection(
        self, server: PartnerServer
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with asyncio.timeout(_ANSWER_S):
            async with await psycopg.AsyncConnection.connect(
                conninfo(self._config, self._recovery, server), autocommit=True
            ) as connection:
                yield connection
