"""One sidecar process, from its command line to its exit status.

Reads the configuration, locks the data directory, starts the ordered log, the admin API and the
replica on one event loop, and stops them in reverse on SIGTERM, SIGINT, or when asked by the API. A
member that splits off from its cluster stops them, too, and starts them again as what it is then.

Exit status: 0 stopped cleanly; 1 a defect, or something outside failed at the start (a port is in
use); 2 the configuration, the data directory or the certificates are not ones to run with; 70 the
log's disk failed, the log is damaged, or its protocol would be violated: then the process leaves
without cleaning up.
"""

import argparse
import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import structlog
import uvloop

from pgherd_sidecar.agent.admin.api import AdminServer
from pgherd_sidecar.agent.admin.health import HealthServer
from pgherd_sidecar.agent.admin.port import AdminBackend
from pgherd_sidecar.agent.admin.remote import RemoteAdmin
from pgherd_sidecar.agent.base import logging
from pgherd_sidecar.agent.base.config import ConfigError, NodeConfig, load_config
from pgherd_sidecar.agent.log import splitsteps
from pgherd_sidecar.agent.log.bootstrap import BootstrapError
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import IdentityError, StoredIdentity
from pgherd_sidecar.env.network.tls import TlsError
from pgherd_sidecar.env.storage.segments import StorageError

_log = structlog.get_logger()

_DEFECT = 1
_UNUSABLE = 2
_LOG_FAILED = 70
_YOUNG_OBJECTS = 20_000
_YOUNG_COLLECTIONS = 20


class Service(AdminBackend, Protocol):
    """A service that runs on top of the log: the replica, or a stand-in for it in tests."""

    async def run(self) -> None:
        """Work until ``stop`` is called or something fails."""

    async def stop(self) -> None:
        """Make ``run`` return soon; may be called more than once."""


MakeService = Callable[[NodeConfig, LogHost, StoredIdentity], Service]


def run_sidecar(arguments: list[str], make_service: MakeService) -> None:
    """Run a sidecar around the service that ``make_service`` returns; exits on errors."""
    parser = argparse.ArgumentParser("pgherd-sidecar", description="Replication manager of a node.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of the node")
    try:
        config = load_config(parser.parse_args(arguments).config)
        identity = StoredIdentity(config)
    except (ConfigError, IdentityError) as error:
        parser.exit(_UNUSABLE, f"pgherd-sidecar: error: {error}\n")
    _allow_files()
    logging.configure(config.log_level, config.name)
    sys.excepthook = _log_exception
    try:
        uvloop.run(_serve(config, identity, make_service))
    except TlsError as error:
        _log.critical("tls.refused", error=str(error))
        sys.exit(_UNUSABLE)
    except IdentityError as error:
        _log.critical("identity.refused", error=str(error))
        sys.exit(_UNUSABLE)
    except StorageError as error:
        _log.critical("log.refused", error=str(error))
        sys.exit(_LOG_FAILED)
    finally:
        identity.close()


async def _serve(
    configured: NodeConfig, identity: StoredIdentity, make_service: MakeService
) -> None:
    """Serve, and begin anew when something was to be done with the log closed (``splitsteps``)."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_exception)
    ending, trouble = _Ending(), ""
    while ending.again:
        config = await loop.run_in_executor(None, splitsteps.resume, configured, identity)
        host = LogHost(
            config,
            disk=identity.disk_id,
            on_failure=_leave_at_once,
            on_split=ending.begin_anew,
        )
        host.splitter.give_up(trouble)
        await _live(config, host, make_service(config, host, identity), ending)
        if host.splitter.due is not None and ending.again:
            try:
                await loop.run_in_executor(
                    None, splitsteps.consent, config, identity.disk_id, host.splitter.due
                )
            except BootstrapError as error:
                trouble = str(error)
                _log.error("split.failed", reason=trouble)
    _log.info("process.stopped")


async def _live(config: NodeConfig, host: LogHost, service: Service, ending: "_Ending") -> None:
    """Run until the service ends."""
    async with AsyncExitStack() as started:
        await host.start()
        started.push_async_callback(host.stop)
        for server in _servers(config, service):
            await server.start()
            started.push_async_callback(server.stop)
        ending.of(service)
        _collect_less()
        _log.info("process.started", cluster_id=str(config.cluster_id), disk_id=host.disk)
        await service.run()


def _servers(
    config: NodeConfig, service: Service
) -> "Iterator[AdminServer | RemoteAdmin | HealthServer]":
    """All that answers requests about this member."""
    yield AdminServer(config.admin_socket, service)
    if config.admin_port is not None:
        yield RemoteAdmin(config, service)
    if config.health_port is not None:
        yield HealthServer(config.health_listens_on, config.health_port, service)


class _Ending:
    """Has one service after the other end, until the process is asked to.

    Attributes:
        again: a service is to begin, when the present one has ended if there is one.
    """

    def __init__(self) -> None:
        self.again = True
        self._asked = False
        self._service: Service | None = None
        self._tasks: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly

    def of(self, service: Service) -> None:
        """Watch over this service from now on: by default nothing comes after it."""
        self.again, self._service = False, service
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number.name)
        if self._asked:
            self._stop()

    def begin_anew(self) -> None:
        """Have the service end for the sake of another one."""
        self.again = not self._asked
        self._stop()

    def _end(self, name: str) -> None:
        _log.info("process.stopping", signal=name)
        self.again, self._asked = False, True
        self._stop()

    def _stop(self) -> None:
        if self._service is not None:
            self._tasks.append(asyncio.get_running_loop().create_task(self._service.stop()))


def _allow_files() -> None:
    """Open as many files as the system allows: each session with the hook takes a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _collect_less() -> None:
    """Have the garbage collector look at what is there for good no more, and seldom at the rest.

    Nearly all objects end by themselves. A collection now and then is for those in circles, as
    tracebacks make them.
    """
    gc.unfreeze()  # what a service before this one has left
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _YOUNG_COLLECTIONS)


def _leave_at_once(_: Exception) -> None:
    os._exit(_LOG_FAILED)  # LogHost has logged why


def _on_loop_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback raised: the state is unknown, so end; trouble of a connection is none of that."""
    error = context.get("exception")
    if error is None or isinstance(error, OSError):
        _log.warning("loop.complained", text=context["message"], error=str(error))
        return
    _log.critical("process.crashed", text=context["message"], exc_info=error)
    os._exit(_DEFECT)


def _log_exception(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    _log.critical("process.crashed", error=str(error), exc_info=error)
