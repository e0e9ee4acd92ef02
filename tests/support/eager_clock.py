"""A clock on which nobody waits: whoever sleeps has slept, and that much time has passed."""

from __future__ import annotations

import asyncio

from icestream.runtime.clock import SimulatedClock


class EagerClock(SimulatedClock):
    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)
