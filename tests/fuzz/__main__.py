"""``python -m fuzz``: what is remembered, then random cases until the time is over.

Prints what it did; a failing case is shrunk and printed as SQL, with what replays it. Exit status 1
when there was one.
"""

import argparse
import contextlib
import itertools
import math
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.case import Case, parse
from fuzz.generate import case as generated
from fuzz.play import Finding, Tally, play
from fuzz.servers import Servers, place
from fuzz.shrink import cut_after, shrink

REMEMBERED = Path(__file__).parent / "remembered"
FIXED_SEED = 1
_SEEDS_APART = 1_000_000


def remembered(names: Sequence[str] = ()) -> list[Case]:
    """The cases that once failed, in the order of their files.

    Args:
        names: beginnings of the cases' names; all when empty.
    """
    cases = [case for path in sorted(REMEMBERED.glob("*.sql")) for case in parse(path.read_text())]
    return [case for case in cases if not names or case.name.startswith(tuple(names))]


@dataclass
class Run:
    """A run of the fuzzer on its servers.

    Attributes:
        failures: cases that failed, shrunk where there was time.
        unsure: cases in which a plain server differed, but not where one member does everything.
    """

    servers: Servers
    shrink_s: float
    tally: Tally = field(default_factory=Tally)
    failures: list[tuple[Case, Finding]] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def try_case(self, case: Case, *, small: bool = False) -> Finding | None:
        """Play a case; when it fails, shrink it unless it is small already, and tell."""
        found = play(self.servers, case, self.tally)
        if found is None or self._by_order(case, found):
            return None
        say(f"FAILED {case.name}\n{_indented(found.text)}")
        if small:
            self.failures.append((case, found))
            return found
        smaller, found = self._shrunk(case, found)
        self.failures.append((smaller, found))
        say(f"{smaller.text()}\n{_indented(found.text)}\n  again: {replayed(case)}\n")
        return found

    def _by_order(self, case: Case, found: Finding) -> bool:
        """Whether a plain server differs only because its rows lie in another order.

        ``UPDATE t SET k = k + 1`` may succeed in one order and fail in another. Where one member
        does everything its rows lie as on the plain server: what differs there is a finding.
        """
        if found.kind not in ("outcome", "plain differs"):
            return False
        alone = cut_after(case, found.step)
        steps = tuple(replace(one, member="n1") for one in alone.steps if not one.act)
        again = play(self.servers, alone.with_steps(steps), Tally())
        if again is None:
            self.unsure.append(f"{case.name}: {found.text}")
        return again is None

    def _shrunk(self, case: Case, found: Finding) -> tuple[Case, Finding]:
        until_s = time.monotonic() + self.shrink_s
        last = found

        def fails(smaller: Case) -> bool:
            nonlocal last
            if time.monotonic() > until_s:
                return False
            again = play(self.servers, smaller, Tally())
            if again is None or again.kind != found.kind:
                return False
            last = again
            return True

        shorter = cut_after(case, found.step)
        return shrink(shorter if fails(shorter) else case, fails), last


def replayed(case: Case) -> str:
    """The command that plays a case again."""
    if case.name.startswith("seed "):
        return f"make fuzz SEED={case.name.removeprefix('seed ')} SECONDS=1"
    return f"make fuzz CASES={case.name.split()[0]}"


def seeds(first: int | None, *, fresh: bool) -> Iterator[int]:
    """Numbers of cases, from a seed on; if none is given, from a fixed one.

    Args:
        first: the seed.
        fresh: whether every other case is of a seed that nobody has tried, if none is given.
    """
    unknown = _SEEDS_APART + random.SystemRandom().randrange(_SEEDS_APART)
    for number in itertools.count():
        yield (FIXED_SEED if first is None else first) + number
        if first is None and fresh:
            yield unknown + number


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def main() -> int:
    """Play; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of random cases")
    parser.add_argument("--count", type=int, help="so many random cases, however long they take")
    parser.add_argument("--seed", type=int, help="of the first random case; then the next ones")
    parser.add_argument("--known", action="store_true", help="no seeds that are new each time")
    parser.add_argument("--cases", nargs="*", help="remembered cases by their names, nothing else")
    parser.add_argument(
        "--file", type=Path, nargs="*", default=[], help="cases of files, no others"
    )
    parser.add_argument("--shrink", type=float, default=300, help="seconds for each failing case")
    parser.add_argument("--most", type=int, default=3, help="end after so many failing cases")
    parser.add_argument("--dir", type=Path, help="keep the servers there, running; or use them")
    parser.add_argument("--tame", action="store_true", help="no extreme settings of databases")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with us
    with _directory(options.dir) as directory:
        servers = Servers(directory, extremes=not options.tame)
        run = Run(servers, options.shrink)
        try:
            servers.start()
            _play_all(run, options)
        finally:
            servers.keep() if options.dir else servers.close()
    say(f"{run.tally}; {len(run.failures)} cases FAILED")
    for text in run.unsure:
        say(f"otherwise than a plain server, whose rows may lie in another order: {text}")
    for text, count in run.tally.refusals.most_common(12):
        say(f"  refused {count} times: {text}")
    return 1 if run.failures else 0


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """Where the servers' files are; every account can enter it."""
    if given is not None:
        given.mkdir(exist_ok=True)
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(
        prefix="pgherd-fuzz-", dir=place(), ignore_cleanup_errors=True
    ) as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def _play_all(run: Run, options: argparse.Namespace) -> None:
    if options.file:
        known = [case for path in options.file for case in parse(path.read_text())]
    elif options.seed is None:
        known = remembered(options.cases or ())
    else:
        known = []
    for case in known:
        found = run.try_case(case, small=True)
        say(f"{case.name}: {found.kind if found else 'well'}")
    if options.cases is not None or options.file:
        return
    until_s = time.monotonic() + (math.inf if options.count else options.seconds)
    for seed in itertools.islice(seeds(options.seed, fresh=not options.known), options.count):
        run.try_case(generated(seed))
        if time.monotonic() > until_s or len(run.failures) >= options.most:
            return


if __name__ == "__main__":
    sys.exit(main())
