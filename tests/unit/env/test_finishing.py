"""What is not left half done, however often its caller is cancelled."""

import asyncio

import pytest
from pgherd_sidecar.env.finishing import to_its_end


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_it_is_done_before_the_caller_ends_however_often_that_is_cancelled(
    times: int,
) -> None:
    may_go_on, done = asyncio.Event(), []

    async def work() -> None:
        await may_go_on.wait()
        done.append(True)

    caller = asyncio.create_task(to_its_end(work()))
    await asyncio.sleep(0)
    for _ in range(times):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not caller.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == [True]


async def test_what_goes_wrong_is_told_to_who_was_not_cancelled() -> None:
    async def work() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        await to_its_end(work())
