"""``pgherd-sidecar --config FILE``: the replication manager beside one PostgreSQL server.

Only joins the process to the replica, so that either can be tested without the other.
"""

import sys

from pgherd_sidecar.agent.base.config import NodeConfig
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.membership.identity import StoredIdentity
from pgherd_sidecar.agent.process import Service, run_sidecar
from pgherd_sidecar.agent.service.replica import Replica
from pgherd_sidecar.agent.service.witness import Witness


def main() -> None:
    """Run the sidecar of the node that the command line names."""
    run_sidecar(sys.argv[1:], _service)


def _service(config: NodeConfig, host: LogHost, identity: StoredIdentity) -> Service:
    return (Witness if config.witness else Replica)(config, host, identity)


if __name__ == "__main__":
    main()
