"""A receipt reports its outcome once, synchronously, to every callback."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.wal.appender import Placed, Result
from icestream.wal.receipt import Receipt

pytestmark = pytest.mark.asyncio
RESULTS: list[Result] = [Placed(7, 1)]


async def test_callbacks_run_as_soon_as_the_outcome_is_known() -> None:
    receipt, results = Receipt(), []
    receipt.add_done_callback(lambda settled: results.append(settled.result()))
    assert not receipt.done()
    receipt.settle(RESULTS)
    assert results == [RESULTS]
    assert (receipt.done(), receipt.exception()) == (True, None)


async def test_a_late_callback_runs_immediately() -> None:
    receipt, reported = Receipt(), []
    receipt.fail(errors.DiskFull("full"))
    receipt.add_done_callback(lambda settled: reported.append(settled.exception()))
    assert [type(error) for error in reported] == [errors.DiskFull]
    with pytest.raises(errors.DiskFull):
        receipt.result()


async def test_it_can_be_awaited_before_and_after() -> None:
    receipt = Receipt()
    waiting = [asyncio.ensure_future(asyncio.wait_for(receipt, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    receipt.settle(RESULTS)
    assert await asyncio.gather(*waiting) == [RESULTS, RESULTS]
    assert await receipt == RESULTS


async def test_a_cancelled_waiter_affects_no_other() -> None:
    receipt = Receipt()
    first, second = (asyncio.ensure_future(asyncio.wait_for(receipt, 5)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    receipt.settle(RESULTS)
    assert await second == RESULTS


async def test_no_callback_runs_before_the_outcome() -> None:
    with pytest.raises(asyncio.InvalidStateError):
        Receipt().result()


async def test_a_failing_callback_affects_no_other_and_is_reported_to_the_loop() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    receipt, notified = Receipt(), []
    receipt.add_done_callback(lambda _: 1 // 0)
    receipt.add_done_callback(notified.append)
    receipt.settle(RESULTS)
    assert notified == [receipt]
    assert [type(error) for error in reported] == [ZeroDivisionError]
