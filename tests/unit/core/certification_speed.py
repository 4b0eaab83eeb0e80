"""How long the verdict on a large transaction takes, beside a plain check: a script, no test.

A full certification index, and a transaction whose base is older than all of it: the worst case,
as all commits wait for the verdict. The plain check looks for each key in each generation of the
index; it is done on a sample, in turns with the other, in processor time of this process. Needs
no server, writes nothing; not among the benchmarks, as it knows the product's insides.
"""

import argparse
import random
import sys
import time
from array import array
from collections.abc import Iterator

from pgherd_sidecar.core.certification.certifier import INDEX_LIMIT, Certifier
from pgherd_sidecar.core.certification.examination import Examination

KEYS_OF_OTHERS = 10
PART_KEYS = 16_000
SAMPLE_PARTS = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2_000_000, help="of the large transaction")
    count = max(parser.parse_args().keys // PART_KEYS, SAMPLE_PARTS)
    rng = random.Random(1)
    certifier, gid = full_index(rng)
    base = certifier.horizon
    parts = [part(rng, base) for _ in range(count)]

    plain_s = 0.0
    for sample in parts[:SAMPLE_PARTS]:
        begun_s = time.process_time()
        assert certifier.preview(sample) is None
        plain_s += time.process_time() - begun_s
    plain_us = 1e6 * plain_s / (SAMPLE_PARTS * PART_KEYS)

    examination = Examination(certifier, gid)
    steps_s = list(durations(examination, parts))
    us = 1e6 * sum(steps_s) / examination.collected.count
    sys.stdout.write(
        f"{len(certifier)} stamps, {examination.collected.count} keys\n"
        f"{plain_us:.2f} us a key one by one, {us:.2f} together: {plain_us / us:.1f} times\n"
        f"{sum(steps_s):.1f} s in all, longest step {1000 * max(steps_s):.0f} ms\n"
    )


def full_index(rng: random.Random) -> tuple[Certifier, int]:
    """An index of as many stamps as it may hold, and the next position."""
    certifier, gid = Certifier(), 0
    while len(certifier) < INDEX_LIMIT * 15 // 16:  # beyond it the oldest are dropped
        gid += 1
        certifier.certify(gid, array("q", [gid - 1, KEYS_OF_OTHERS, *keys(rng, KEYS_OF_OTHERS)]))
    return certifier, gid + 1


def part(rng: random.Random, base: int) -> "array[int]":
    """The keys of one piece."""
    return array("q", [base, PART_KEYS, *keys(rng, PART_KEYS)])


def keys(rng: random.Random, count: int) -> list[int]:
    """Rows that were updated."""
    return [rng.getrandbits(64) - (1 << 63) | 3 for _ in range(count)]


def durations(examination: Examination, parts: list["array[int]"]) -> Iterator[float]:
    """Processor seconds of each step of an examination."""
    begun_s = time.process_time()
    for steps in (*map(examination.take_groups, parts), examination.find_verdict()):
        for _ in steps:
            ended_s = time.process_time()
            yield ended_s - begun_s
            begun_s = ended_s


if __name__ == "__main__":
    main()
