"""A part of the end-to-end tests, so that no run of them takes too long."""

import re
from collections.abc import Hashable, Mapping
from typing import TypeVar

File = TypeVar("File", bound=Hashable)


def files_of(shard: str, tests: Mapping[File, int]) -> set[File]:
    """The files that belong to a shard: all have about as many tests, and each file has one.

    Args:
        shard: which of how many, as ``1/4``.
        tests: how many tests each file has, in an order that is always the same.

    Raises:
        ValueError: it is no such thing.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"{shard!r} is no shard: give one as 1/4")
    shards: list[list[File]] = [[] for _ in range(int(found[2]))]
    for file in sorted(tests, key=lambda file: -tests[file]):
        min(shards, key=lambda files: sum(tests[one] for one in files)).append(file)
    return set(shards[int(found[1]) - 1])
