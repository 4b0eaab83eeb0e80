"""``python -m fuzz``: what is remembered, then random cases until the time is over.

Prints what it did; a failing case is shrunk and printed as SQL, with what replays it. Exit status 1
when there was one.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.case import Case, parse
from fuzz.play import Finding, Tally, play
from fuzz.servers import Servers, place

REMEMBERED = Path(__file__).parent / "remembered"


def remembered(names: Sequence[str] = ()) -> list[Case]:
    """The cases that once failed, in the order of their files.

    Args:
        names: beginnings of the cases' names; all when empty.
    """
    cases = [case for path in sorted(REMEMBERED.glob("*.sql")) for case in parse(path.read_text())]
    return [case for case in cases if not names or case.name.startswith(tuple(names))]


def main() -> int:
    """Play; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="remembered cases, by their names")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgherd-fuzz-", dir=place()) as directory:
        Path(directory).chmod(0o755)
        servers = Servers(Path(directory))
        tally = Tally()
        try:
            servers.start()
            for case in remembered(options.cases):
                began_s = time.monotonic()
                found = play(servers, case, tally)
                print(f"{time.monotonic() - began_s:5.1f} s  {case.name}: {found}", flush=True)
        finally:
            servers.close()
        print(tally)
    return 0


if __name__ == "__main__":
    sys.exit(main())
