"""One sidecar process, from its command line to its exit status.

Reads the configuration, locks the data directory, starts the ordered log, the admin API and the
replica on one event loop, and stops them in reverse on SIGTERM, SIGINT, or when asked by the API.

Exit status: 0 stopped cleanly; 1 a defect, or something outside failed at the start (a port is in
use); 2 the configuration, the data directory or the certificates are not ones to run with; 70 the
log's disk failed, the log is damaged, or its protocol would be violated: then the process leaves
without cleaning up.

Called by ``main``, and by tests with a stand-in for the replica.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import structlog
import uvloop

from pgherd_sidecar.agent import logging
from pgherd_sidecar.agent.admin import AdminBackend, AdminServer
from pgherd_sidecar.agent.config import ConfigError, NodeConfig, load
from pgherd_sidecar.agent.health import HealthServer
from pgherd_sidecar.agent.identity import Identity, IdentityError
from pgherd_sidecar.agent.loghost import LogHost
from pgherd_sidecar.agent.remote import RemoteAdmin
from pgherd_sidecar.env.segments import StorageError
from pgherd_sidecar.env.tls import TlsError

_log = structlog.get_logger()

_DEFECT = 1
_UNUSABLE = 2
_LOG_FAILED = 70


class Service(AdminBackend, Protocol):
    """What runs on top of the log: the replica, or a stand-in for it in tests."""

    async def run(self) -> None:
        """Work until ``stop`` is called or something fails."""
        ...

    async def stop(self) -> None:
        """Make ``run`` return soon; may be called more than once."""
        ...


MakeService = Callable[[NodeConfig, LogHost, Identity], Service]


def run(arguments: list[str], make_service: MakeService) -> None:
    """Run a sidecar around the service that ``make_service`` returns; exits on errors."""
    parser = argparse.ArgumentParser("pgherd-sidecar", description="Replication manager of a node.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of the node")
    try:
        config = load(parser.parse_args(arguments).config)
        identity = Identity(config)
    except (ConfigError, IdentityError) as error:
        parser.exit(_UNUSABLE, f"pgherd-sidecar: error: {error}\n")
    logging.configure(config.log_level, config.name)
    sys.excepthook = _log_exception
    try:
        uvloop.run(_serve(config, identity, make_service))
    except TlsError as error:
        _log.critical("tls_unusable", error=str(error))
        sys.exit(_UNUSABLE)
    except IdentityError as error:
        _log.critical("identity_unusable", error=str(error))
        sys.exit(_UNUSABLE)
    except StorageError as error:
        _log.critical("log_unusable", error=str(error))
        sys.exit(_LOG_FAILED)
    finally:
        identity.close()


async def _serve(config: NodeConfig, identity: Identity, make_service: MakeService) -> None:
    asyncio.get_running_loop().set_exception_handler(_on_loop_exception)
    host = LogHost(config, disk=identity.disk_id, on_failure=_leave_at_once)
    service = make_service(config, host, identity)
    async with AsyncExitStack() as started:
        await host.start()
        started.push_async_callback(host.stop)
        for server in _servers(config, service):
            await server.start()
            started.push_async_callback(server.stop)
        _stop_on_signals(service)
        _log.info("started", cluster_id=str(config.cluster_id), disk_id=identity.disk_id)
        await service.run()
    _log.info("stopped")


def _servers(
    config: NodeConfig, service: Service
) -> "Iterator[AdminServer | RemoteAdmin | HealthServer]":
    """All that answers requests about this member."""
    yield AdminServer(config.admin_socket, service)
    if config.admin_port is not None:
        yield RemoteAdmin(config, service)
    if config.health_port is not None:
        yield HealthServer(config.listens_on, config.health_port, service)


def _stop_on_signals(service: Service) -> None:
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []  # the loop itself holds tasks weakly

    def stop(name: str) -> None:
        _log.info("stopping", signal=name)
        stopping.append(loop.create_task(service.stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)


def _leave_at_once(_: Exception) -> None:
    os._exit(_LOG_FAILED)  # LogHost has logged why


def _on_loop_exception(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback raised: the state is unknown, so end; trouble of a connection is none of that."""
    error = context.get("exception")
    if error is None or isinstance(error, OSError):
        _log.warning("event_loop_complaint", text=context["message"], error=str(error))
        return
    _log.critical("crashed", text=context["message"], exc_info=error)
    os._exit(_DEFECT)


def _log_exception(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    _log.critical("crashed", error=str(error), exc_info=error)
