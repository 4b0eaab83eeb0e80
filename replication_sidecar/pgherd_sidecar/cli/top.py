"""``pgherd top``: what a herd does now, on one screen that is drawn again and again.

Rates are differences between two answers of a sidecar; a counter that has become smaller has begun
anew. COMMIT's percentiles are of the waits for verdicts in between, which are most of what COMMIT
takes; each is the upper end of a range that is a quarter wide. Nothing is asked of the servers.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgherd_sidecar.cli.shared.render import aligned
from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.answers import HotKeyAnswer, Status
from pgherd_sidecar.client.errors import HerdError

_PERCENTILES = (0.5, 0.95, 0.99)
_HOT_SHOWN = 10
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; and back."""
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_HEADER = (
    "NAME", "STATE", "ROLE", "COMMIT/S", "40001/S", "P50 MS", "P95", "P99",
    "LAG", "QUEUE", "WAITING", "VICTIMS", "GID", "LOG",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sidecars said at one moment.

    Attributes:
        at_s: on a clock that only goes forward.
        names: of all members, also of those that did not answer.
        answers: by name.
    """

    at_s: float
    names: tuple[str, ...]
    answers: Mapping[str, Status]


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What the user asked for. ``names``: members of whom the caller knows."""

    interval_s: float
    once: bool
    names: tuple[str, ...] = ()


async def top(listen: cluster.Listen, options: TopOptions) -> None:
    """Show frames until q or Ctrl-C; one, if the user asked for one.

    Raises:
        HerdError: the first time nobody answers; later the screen says so.
    """
    before = await _sample(listen, options)
    if not before.answers:
        raise HerdError("no sidecar answers: start the herd with `pgherd local up`")
    live = sys.stdout.isatty() and not options.once
    screen = _screen() if live else contextlib.nullcontext()
    ctrl_c = contextlib.suppress(asyncio.CancelledError)  # it is a way to end this
    with screen, _keys() as ended, ctrl_c:
        while not await _is_set_within(ended, options.interval_s):
            now = await _sample(listen, options)
            _show(frame(before, now), live=live)
            if options.once:
                return
            before = now


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def _sample(listen: cluster.Listen, options: TopOptions) -> Sample:
    try:
        voices = await listen()
    except HerdError:
        if options.once:
            raise
        voices = []
    answers = {voice.status.name: voice.status for voice in voices}
    said = cluster.speaker(answers.values())
    known = [one.name for one in said.view.members] if said is not None and said.view else []
    names = tuple(dict.fromkeys([*options.names, *known, *answers]))
    return Sample(time.monotonic(), names, answers)


def frame(before: Sample, now: Sample) -> list[str]:
    """Return the lines of a screen.

    Args:
        before: an earlier sample, for the rates.
        now: what is shown.
    """
    said = cluster.speaker(now.answers.values())
    if said is None:
        return ["no sidecar answers"]
    elapsed_s = max(now.at_s - before.at_s, 1e-3)
    pairs = {name: (before.answers.get(name), one) for name, one in now.answers.items()}
    commits, conflicts = (
        sum(_rate(pair, field, elapsed_s) for pair in pairs.values())
        for field in ("own_commits", "own_conflicts")
    )
    missing = len(now.names) - len(now.answers)
    head = [
        f"cluster {said.cluster_id}   GID {_count(said.gid)}   {said.component or '-'} component, "
        f"term {_count(said.term)}, proposer {said.proposer or '-'}",
        f"{len(now.names)} member{'' if len(now.names) == 1 else 's'}"
        + (f", {missing} not asked or not answering" if missing else "")
        + f"   {commits:,.0f} commits/s   {conflicts:,.1f} conflicts/s",
        "",
    ]
    rows = [_row(said, name, pairs.get(name), elapsed_s) for name in now.names]
    reasons = [f"{one.name}: {one.reason}" for one in now.answers.values() if one.reason]
    return [*head, *aligned(_HEADER, rows).splitlines(), *reasons, *_hottest(pairs, elapsed_s)]


Pair = tuple[Status | None, Status]
"""What a sidecar said earlier, if it did, and now."""


def _row(said: Status, name: str, pair: Pair | None, elapsed_s: float) -> Sequence[str]:
    peer = cluster.seen(said, name)
    if pair is None:
        lag = "-" if peer.lag_entries is None else f"{peer.lag_entries:,} entries"
        silence = "-" if peer.last_seen_s is None else f"heard {peer.last_seen_s:.1f} s ago"
        return (name, silence, peer.role or "-", *["-"] * 5, lag, *["-"] * 5)
    one = pair[1]
    if one.own_commits is None:  # a witness, or its database is not there
        figures = ["-"] * 5
    else:
        waits = _between(pair)
        figures = [
            f"{_rate(pair, 'own_commits', elapsed_s):,.0f}",
            f"{_rate(pair, 'own_conflicts', elapsed_s):,.1f}",
            *("-" if (wait := percentile(waits, p)) is None else _ms(wait) for p in _PERCENTILES),
        ]
    return (
        name,
        one.state,
        one.role or peer.role or "-",
        *figures,
        "-" if one.lag_entries is None else f"{one.lag_entries:,} entries",
        _bytes(one.apply_queue_bytes),
        _count(one.pending),
        _count(one.victims),
        _count(one.gid),
        _bytes(one.log_bytes),
    )


def _hottest(pairs: Mapping[str, Pair], elapsed_s: float) -> list[str]:
    """The keys that transactions of all members lose by: those of now first, then those of ever."""
    found: dict[tuple[str, str], tuple[float, int, int]] = {}
    for earlier, one in pairs.values():
        known = {(hot.table, hot.key): hot for hot in earlier.hot_keys} if earlier else {}
        for hot in one.hot_keys:
            key = hot.table, hot.key
            rate, count, gid = found.get(key, (0.0, 0, 0))
            more = _increase(known[key], hot) / elapsed_s if key in known else 0.0
            found[key] = rate + more, count + hot.count, max(gid, hot.gid)
    if not found:
        return []
    ranked = sorted(found.items(), key=lambda item: item[1], reverse=True)[:_HOT_SHOWN]
    rows = [
        (name, key or "-", f"{rate:,.1f}", f"{count:,}", str(gid))
        for (name, key), (rate, count, gid) in ranked
    ]
    header = ("CONFLICTS IN", "KEY", "/S", "COUNT", "LAST WINNER")
    return ["", *aligned(header, rows).splitlines()]


def _increase(earlier: HotKeyAnswer, now: HotKeyAnswer) -> int:
    return now.count if now.count < earlier.count else now.count - earlier.count


def _rate(pair: Pair, field: str, elapsed_s: float) -> float:
    earlier, now = pair
    value = getattr(now, field) or 0
    former = (getattr(earlier, field) or 0) if earlier is not None else value
    return (value if value < former else value - former) / elapsed_s


def _between(pair: Pair) -> dict[float, int]:
    """How many waits there were in each range since the earlier answer."""
    earlier, now = pair
    former = earlier.commit_waits if earlier is not None else now.commit_waits
    if any(now.commit_waits.get(bound, 0) < count for bound, count in former.items()):
        former = {}
    found = {float(bound): n - former.get(bound, 0) for bound, n in now.commit_waits.items()}
    return {bound: count for bound, count in found.items() if count}


def percentile(waits: Mapping[float, int], share: float) -> float | None:
    """Return the upper end of the range in which this share of the waits ends, None without any."""
    left = share * sum(waits.values())
    for bound in sorted(waits):
        left -= waits[bound]
        if left <= 0:
            return bound
    return None


def _ms(seconds: float) -> str:
    return ">52 s" if seconds == float("inf") else f"{seconds * 1000:,.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    amount, units = float(value), iter(("kB", "MB", "GB"))
    unit = "B"
    while amount >= 1000 and (larger := next(units, None)) is not None:
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}"


# ---- the terminal ------------------------------------------------------------------------------


def _show(lines: Sequence[str], *, live: bool) -> None:
    """Draw over the last frame, as much as there is room for; in a pipe, print it."""
    if not live:
        print("\n".join(lines), end="\n\n", flush=True)
        return
    size = shutil.get_terminal_size()
    shown = [f"pgherd top   {time.strftime('%H:%M:%S')}   q ends", *lines][: size.lines]
    text = "\n".join(line[: size.columns] + _REST_OF_LINE for line in shown)
    print(f"{_HOME}{text}{_REST}", end="", flush=True)


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    print(_ENTER, end="", flush=True)
    try:
        yield
    finally:
        print(_LEAVE, end="", flush=True)


@contextlib.contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Yield an event that q sets, where there is a keyboard."""
    ended = asyncio.Event()
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        yield ended
        return
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    usual = termios.tcgetattr(keyboard)

    def pressed() -> None:
        if os.read(keyboard, 64)[:1] in (b"q", b"Q", b""):  # nothing: the terminal is gone
            ended.set()

    try:
        tty.setcbreak(keyboard)
        loop.add_reader(keyboard, pressed)
        yield ended
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, usual)
