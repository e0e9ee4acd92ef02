"""Waits for a condition that another part of the program makes true without an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_SECONDS = 60.0


async def until(is_reached: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_reached():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
