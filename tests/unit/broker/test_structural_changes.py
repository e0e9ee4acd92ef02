"""Structural changes that are cancelled, together with their callers or without them."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.broker.structural_changes import StructuralChanges


async def _endless_change() -> None:
    await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_a_stop_ends_the_callers_of_changes_with_an_error() -> None:
    changes = StructuralChanges()
    caller = asyncio.ensure_future(changes.run(_endless_change))
    await asyncio.sleep(0)
    await changes.stop()
    with pytest.raises(errors.ShuttingDown):
        await caller


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_together_with_its_change_is_cancelled() -> None:
    """An error instead of the cancellation would let a background task go on, and a shutdown wait for it for ever."""
    changes = StructuralChanges()
    caller = asyncio.ensure_future(changes.run(_endless_change))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert caller.cancelled()
