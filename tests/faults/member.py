"""A sidecar that dials its peers by the wires: run in place of the real one, of which it is all.

Copied to where the servers' account can read it, so it imports nothing of the tests. The addresses
of founders are part of the log's first entry: wires are for herds that exist.
"""

import os
import sys
from pathlib import Path

from pgherd_sidecar.agent import main
from pgherd_sidecar.agent.base.config import NodeConfig, load_config

WIRES_VARIABLE = "PGHERD_TEST_WIRES"


def wired(found: NodeConfig, port_base: int) -> NodeConfig:
    """Put wires between a member and its peers; see ``wires.wire_port``."""
    assert not found.founder
    members = tuple(
        one
        if one.name == found.name
        else one.model_copy(update={"port": port_base + 10 * found.number + one.number})
        for one in found.members
    )
    return found.model_copy(update={"members": members})


if __name__ == "__main__":
    assert sys.argv[1] == "--config"
    path = Path(sys.argv[2])
    config = wired(load_config(path), int(os.environ[WIRES_VARIABLE]))
    path = path.with_suffix(".wired")
    path.write_text(config.model_dump_json(indent=2))
    sys.argv[2] = str(path)
    main.main()
