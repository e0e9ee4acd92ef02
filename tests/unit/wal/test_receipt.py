"""A receipt tells once, at once, and to everybody who asks."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.wal.appender import Placed, Result
from icestream.wal.receipt import Receipt

pytestmark = pytest.mark.asyncio
RESULTS: list[Result] = [Placed(7, 1)]


async def test_it_calls_back_in_the_moment_in_which_it_is_known() -> None:
    receipt, told = Receipt(), []
    receipt.add_done_callback(lambda one: told.append(one.result()))
    assert not receipt.done()
    receipt.settle(RESULTS)
    assert told == [RESULTS]
    assert (receipt.done(), receipt.exception()) == (True, None)


async def test_whoever_asks_late_is_told_at_once() -> None:
    receipt, told = Receipt(), []
    receipt.fail(errors.DiskFull("full"))
    receipt.add_done_callback(lambda one: told.append(one.exception()))
    assert [type(error) for error in told] == [errors.DiskFull]
    with pytest.raises(errors.DiskFull):
        receipt.result()


async def test_it_can_be_awaited_before_and_after() -> None:
    receipt = Receipt()
    waiting = [asyncio.ensure_future(asyncio.wait_for(receipt, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    receipt.settle(RESULTS)
    assert await asyncio.gather(*waiting) == [RESULTS, RESULTS]
    assert await receipt == RESULTS


async def test_who_gives_up_waiting_takes_nothing_from_others() -> None:
    receipt = Receipt()
    first, second = (asyncio.ensure_future(asyncio.wait_for(receipt, 5)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    receipt.settle(RESULTS)
    assert await second == RESULTS


async def test_nobody_is_told_what_is_not_known() -> None:
    with pytest.raises(asyncio.InvalidStateError):
        Receipt().result()


async def test_one_who_fails_disturbs_nobody_and_the_loop_is_told() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    receipt, heard = Receipt(), []
    receipt.add_done_callback(lambda _: 1 // 0)
    receipt.add_done_callback(heard.append)
    receipt.settle(RESULTS)
    assert heard == [receipt]
    assert [type(error) for error in told] == [ZeroDivisionError]
