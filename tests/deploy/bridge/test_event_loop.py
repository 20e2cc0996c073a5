"""Work in a thread, of somebody who is cancelled meanwhile."""

import asyncio
import gc
import time

import pytest

from rlinf_core.deploy.bridge.listener import run_to_completion

pytestmark = pytest.mark.timed


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_who_is_cancelled_is_so_once_the_work_is_through_and_no_log_hears_of_it(
    fails, times, caplog
):
    done = []

    def work():
        time.sleep(0.2)
        done.append(1)
        if fails:
            raise OSError("the disk is full")

    async def cancelled():
        waiting = asyncio.ensure_future(run_to_completion(work))
        for _ in range(times):
            await asyncio.sleep(0.02)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done == [1]
        del waiting
        gc.collect()

    asyncio.run(cancelled())
    gc.collect()
    assert not caplog.records


def test_what_it_raises_is_raised():
    async def raises():
        await run_to_completion(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(raises())
