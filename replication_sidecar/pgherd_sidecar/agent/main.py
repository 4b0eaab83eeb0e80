"""``pgherd-sidecar --config FILE``: the replication manager beside one PostgreSQL server.

Only joins the process to the replica, so that either can be tested without the other.
"""

import sys

from pgherd_sidecar.agent.process import run
from pgherd_sidecar.agent.replica import Replica


def main() -> None:
    """Run the sidecar of the node that the command line names."""
    run(sys.argv[1:], Replica)


if __name__ == "__main__":
    main()
