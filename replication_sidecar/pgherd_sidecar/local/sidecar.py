"""One node's sidecar process: configured, started, asked, stopped, killed.

The sidecar is started detached, with its output in ``sidecar.log``, and known by its pid file.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pgherd_sidecar.client.admin import AdminClient, AdminError
from pgherd_sidecar.client.errors import HerdError, last_words
from pgherd_sidecar.env.processes.detached import ProcessId, identify, read_pid_file, write_pid_file
from pgherd_sidecar.env.storage import durable
from pgherd_sidecar.lazily import lazily
from pgherd_sidecar.local.herd import Herd, HerdNode
from pgherd_sidecar.local.postgres import SETTINGS_FILE

with lazily():
    from pgherd_sidecar.agent.base import config as configuration

SCRIPT_VARIABLE = "PGHERD_SIDECAR_SCRIPT"
"""Environment variable: a Python file to run in place of the sidecar (the tests have some)."""
_LOG_KEEP_BYTES = 16 << 20
_KILL_S = 10.0
_HOST = "127.0.0.1"
_SETTINGS = (
    "timing",
    "scrub",
    "fingerprint_every",
    "capture",
    "partition_policy",
    "on_divergence",
)
"""Fields of its configuration that the user may change at any time."""


class Sidecar:
    """The sidecar of one member of a herd on this machine."""

    def __init__(self, herd: Herd, member: HerdNode) -> None:
        self._herd = herd
        self._member = member
        self._paths = herd.node(member)
        self.admin = AdminClient(self._paths.admin_socket)

    def process(self) -> ProcessId | None:
        """Return the running sidecar, if any."""
        return read_pid_file(self._paths.sidecar_pid)

    def has_identity(self) -> bool:
        """Whether a sidecar has run here before: then the node is a member with a history."""
        return (self._paths.sidecar_data / "identity.json").exists()

    def rebuilds(self) -> bool:
        """Whether it is about to replace the node's database: then the server is its to run.

        Asked of its file, because it has to be known before the sidecar runs.
        """
        try:
            found = json.loads((self._paths.sidecar_data / "rebuild.json").read_bytes())
            return found["phase"] != "idle" and not found["given_up"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return False  # the sidecar, too, takes a damaged file for none

    def start(self, copy_rate_bytes_s: int | None = None) -> None:
        """Start the process; it becomes ready later (see ``admin.status``).

        Args:
            copy_rate_bytes_s: how fast it copies a partner at most, until it is started anew.
        """
        self._herd.make_sockets(self._member)
        self._paths.sidecar_data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_passwords()
        config = self.config(copy_rate_bytes_s)
        self._paths.config.write_text(config.model_dump_json(indent=2) + "\n")
        self._rotate_log()
        script = os.environ.get(SCRIPT_VARIABLE)
        program = [script] if script else ["-P", "-m", "pgherd_sidecar.agent.main"]
        with self._paths.sidecar_log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, *program, "--config", str(self._paths.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._paths.root,
            )
        child.returncode = 0  # detached: it outlives us, Popen need not watch over it
        process = identify(child.pid)
        if process is not None:
            write_pid_file(self._paths.sidecar_pid, process)

    def has_old_settings(self) -> bool:
        """Whether it was started with other settings than the herd has by now.

        Who is a member does not count: a sidecar learns of others from the log.
        """
        try:
            told = configuration.load_config(self._paths.config)
        except configuration.ConfigError:
            return True
        now = self.config()
        return any(getattr(told, name) != getattr(now, name) for name in _SETTINGS)

    async def stop(self, timeout_s: float) -> None:
        """End the process: ask it to finish, then SIGTERM, then SIGKILL."""
        process = self.process()
        if process is None:
            return
        try:
            await self.admin.shutdown()
        except AdminError:
            process.signal(signal.SIGTERM)
        if not await process.wait_exit(timeout_s):
            process.signal(signal.SIGTERM)
            if not await process.wait_exit(timeout_s):
                await self.kill()
        self._paths.sidecar_pid.unlink(missing_ok=True)

    async def kill(self) -> bool:
        """SIGKILL the process and wait until it is gone; False when there was none."""
        process = self.process()
        if process is None:
            return False
        process.signal(signal.SIGKILL)
        await process.wait_exit(_KILL_S)
        return True

    def last_words(self) -> str:
        """Its last complaint in the log, and the log's path."""
        log = self._paths.sidecar_log
        text = log.read_text(errors="replace") if log.exists() else ""
        return f"{last_words(text)} (see {log})"

    def config(self, copy_rate_bytes_s: int | None = None) -> "configuration.NodeConfig":
        """What the sidecar is told; see ``start``.

        Raises:
            HerdError: no sidecar would take what the herd is described by.
        """
        try:
            return self._config(copy_rate_bytes_s)
        except ValidationError as error:
            said = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise HerdError(
                f"the sidecar of {self._member.name} would refuse its settings ({said}): "
                "give others by the options of `pgherd local up`"
            ) from error

    def _config(self, copy_rate_bytes_s: int | None) -> "configuration.NodeConfig":
        herd, member = self._herd, self._member
        beside: dict[str, Any] = {"witness": True}
        if not member.witness:
            socket = str(self._paths.run)
            beside = {
                "postgres": configuration.PostgresAddress(
                    host=socket, port=member.port, tcp_host=_HOST
                ),
                "hook_dir": self._paths.hook,
                "reader": member.reader,
                "recovery": self._recovery(copy_rate_bytes_s),
            }
        return configuration.NodeConfig(
            cluster_id=herd.cluster_id,
            name=member.name,
            number=member.number,
            members=tuple(
                configuration.MemberAddress(
                    name=peer.name,
                    number=peer.number,
                    host=_HOST,
                    port=peer.peer_port,
                    witness=peer.witness,
                )
                for peer in herd.members
            ),
            founder=not (herd.founded or member.reader),
            sequence_slots=herd.slots,
            timing=configuration.TimingSettings(
                evict_ms=round(herd.evict_s * 1000),
                **({"partition_split_ms": round(herd.split_s * 1000)} if herd.split_s else {}),
            ),
            fingerprint_every=herd.fingerprint_every,
            capture=herd.capture,
            partition_policy="permanent" if herd.split_s else "primary",
            scrub=configuration.ScrubSettings(interval_s=herd.scrub_s, share=herd.scrub_share),
            on_divergence=herd.on_divergence,
            data_dir=self._paths.sidecar_data,
            admin_socket=self._paths.admin_socket,
            health_port=member.health_port,
            tls=configuration.Tls(directory=self._paths.tls),
            **beside,
        )

    def _recovery(self, copy_rate_bytes_s: int | None) -> "configuration.RecoverySettings":
        found = configuration.RecoverySettings(
            automatic=True,
            method=self._member.origin.method,
            snapshot=self._member.origin.snapshot,
            snapshot_endpoint=self._member.origin.snapshot_endpoint,
            settings=Path(SETTINGS_FILE),
            postgres_bin=self._herd.programs_of(self._member),
            data_directory=self._paths.pgdata,
            overlay=self._paths.overlay,
            server_log=self._paths.postgres_log,
            partners=tuple(
                configuration.PartnerServer(member=peer.name, host=_HOST, port=peer.port)
                for peer in self._herd.databases
                if peer != self._member
            ),
            passfile=self._paths.passfile,
        )
        if copy_rate_bytes_s is None:
            return found
        return found.model_copy(update={"max_rate_bytes_s": copy_rate_bytes_s})

    def _write_passwords(self) -> None:
        """Write libpq's file of passwords, for the owner's eyes only."""
        passfile = self._paths.passfile
        content = (
            f"{_HOST}:*:*:postgres:{self._herd.superuser_password}\n"
            f"{_HOST}:*:*:app:{self._herd.app_password}\n"
        )
        durable.replace(passfile.parent, passfile.name, content.encode(), 0o600)

    def _rotate_log(self) -> None:
        log = self._paths.sidecar_log
        if log.exists() and log.stat().st_size > _LOG_KEEP_BYTES:
            log.replace(log.with_suffix(".log.1"))
