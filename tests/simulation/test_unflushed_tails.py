"""A log that is opened is durable as it is, though the process before may not have flushed it."""

from random import Random

import pytest
from pgherd_sidecar.core.consensus import Block, Control, Persist
from pgherd_sidecar.env.storage.segments import SegmentLog
from sim_disk import PowerLoss, SimDirectory

_SEEDS = range(20)


def open_log(directory: SimDirectory) -> SegmentLog:
    return SegmentLog(directory, segment_bytes=2048, cache_bytes=0)


def written(term: int, first: int) -> tuple[Block, ...]:
    return tuple(Block.make(term, at, 1, b"%d" % at * 100) for at in range(first, first + 4))


def die_at(directory: SimDirectory, operation: int, persist: Persist) -> bool:
    """Persist up to an operation of the disk; False if there are not that many."""
    log = open_log(directory)
    directory.crash_after = operation
    try:
        log.persist(persist)
    except PowerLoss:
        return True
    directory.crash_after = None
    return False


VOTE = Persist(2, Control(term=2, vote="n2"), None, ())
TRUNCATION = Persist(2, VOTE.control, 2, written(2, 3))


@pytest.mark.parametrize("persist", [VOTE, TRUNCATION], ids=["vote", "truncation"])
@pytest.mark.parametrize("flush_fails", [False, True])
@pytest.mark.parametrize("operation", range(16))
def test_a_log_that_was_opened_is_the_same_after_the_power_has_gone(
    persist: Persist, flush_fails: bool, operation: int
) -> None:
    for seed in _SEEDS:
        rng, directory = Random(seed), SimDirectory()
        log = open_log(directory)
        log.persist(Persist(1, Control(term=1, vote="n1"), None, written(1, 1)))
        if not die_at(directory, operation, persist):
            return
        if flush_fails:
            directory.fail_flush(rng)
        else:
            directory.kill()
        log = open_log(directory)
        before = (log.control, log.index.last, log.index.history, log.read(1, 10_000))
        directory.crash(rng)
        log = open_log(directory)
        assert (log.control, log.index.last, log.index.history, log.read(1, 10_000)) == before
