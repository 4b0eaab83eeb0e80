"""Work that waits for Spark in a thread, by a Spark that is a Python object."""

import asyncio
from threading import Event
from types import SimpleNamespace

import pytest
from pgherd_spark.reading.cluster import Cluster

_PATIENCE_S = 20.0


class Context:
    """Notes when it is to end what is running, which is nothing the first time."""

    def __init__(self) -> None:
        self.idle, self.ended = Event(), Event()

    def cancelAllJobs(self) -> None:
        (self.ended if self.idle.is_set() else self.idle).set()


async def test_work_that_is_cancelled_between_two_jobs_ends_with_the_next() -> None:
    begun, context = Event(), Context()
    cluster = Cluster(SimpleNamespace(sparkContext=context), ())

    def work() -> None:
        begun.set()
        context.idle.wait(_PATIENCE_S)  # at something else than a job
        context.ended.wait(_PATIENCE_S)  # at a job

    working = asyncio.ensure_future(cluster.in_thread(work))
    await asyncio.to_thread(begun.wait)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert context.ended.is_set()
