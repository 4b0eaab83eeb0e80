"""The one exception of the benchmarks: something a person has to put right.

Every command line of this package turns it into one line on stderr and exit status 1.
"""

import sys
from collections.abc import Callable


class BenchmarkError(Exception):
    """A run cannot go on; the message says what to do, in one line."""


def run_main(main: Callable[[], int]) -> None:
    """Run a command line's ``main`` and leave the process with its status.

    Args:
        main: Returns the exit status; may raise BenchmarkError.
    """
    try:
        status = main()
    except BenchmarkError as error:
        # libpq's messages have several lines; ours is one.
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        status = 130
    raise SystemExit(status)
