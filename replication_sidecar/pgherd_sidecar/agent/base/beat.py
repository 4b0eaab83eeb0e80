"""Looks that recur are taken together: what falls due at one moment wakes the process once.

Waking an idle process costs more than most looks do. So they happen at multiples of their pace on
the clock of the loop, and paces are multiples of each other where they can be.
"""

import asyncio


def until_next_s(pace_s: float) -> float:
    """Return how long it is, in seconds, until the clock comes to a multiple of the pace.

    The clock is taken in whole milliseconds, as timers are: they never ring too early.
    """
    pace_ms = round(pace_s * 1000)
    now_ms = round(asyncio.get_running_loop().time() * 1000)
    return (pace_ms - now_ms % pace_ms) / 1000
