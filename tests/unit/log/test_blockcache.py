"""The cache of newest blocks keeps its bound and gives back what it holds."""

import tracemalloc

from pgherd_sidecar.core.consensus import Block
from pgherd_sidecar.env.storage.blockcache import BlockCache


def _block(first: int, size: int) -> Block:
    return Block.make(1, first, 1, bytes(size))


def test_dropped_blocks_are_not_held_in_memory() -> None:
    tracemalloc.start()
    try:
        cache = BlockCache(1 << 20)
        for first in range(1, 200):
            cache.append(_block(first, 400_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 << 20


def test_a_read_gives_at_least_one_block_and_else_keeps_to_the_limit() -> None:
    cache = BlockCache(10_000)
    for first in range(1, 11):
        cache.append(_block(first, 100))
    assert [block.first for block in cache.read(4, 250)] == [4, 5]
    assert [block.first for block in cache.read(4, 1)] == [4]
    assert cache.read(11, 100) == ()


def test_truncated_positions_are_gone_and_may_come_again() -> None:
    cache = BlockCache(10_000)
    for first in range(1, 11):
        cache.append(_block(first, 100))
    cache.truncate(4)
    assert cache.read(5, 1_000) == ()
    again = _block(5, 7)
    cache.append(again)
    assert cache.read(4, 1_000)[1] is again
    cache.truncate(0)
    assert cache.read(1, 1_000) == ()
