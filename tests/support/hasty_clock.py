"""A clock for clients that should not wait long in a test."""

from __future__ import annotations

import asyncio

from icestream.runtime.clock import SystemClock


class HastyClock(SystemClock):
    """Waits a hundredth of what it should."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 100)
