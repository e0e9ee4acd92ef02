"""Keeps a process connected to its broker: opens the link, waits until it is lost, opens it again.

away --a link is open--> here --it is lost--> away        while away: a try every LINK_RETRY_SECONDS_MIN, doubling
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from icestream import errors, limits
from icestream.rpc.link import Document, Link, OnEvent, open_link
from icestream.runtime.clock import Clock


class LinkKeeper:
    def __init__(self, path: Path, client: str, clock: Clock) -> None:
        self._path = path
        self._client = client
        self._clock = clock
        self._here = asyncio.Event()
        self._why = errors.ConnectionLost(f"not connected to the broker at {path} yet", hint="it is tried again")
        self.link: Link | None = None
        self.links_opened = 0
        self.instance = ""  # of the broker that was reached last (runtime/instance.py)

    @property
    def is_here(self) -> bool:
        return self.link is not None

    async def run(self) -> None:
        """Until it is cancelled."""
        delay = limits.LINK_RETRY_SECONDS_MIN
        try:
            while True:
                try:
                    self.link = await open_link(self._path, self._client)
                except errors.IcestreamError as error:
                    self._note(error)
                    await self._clock.sleep(delay)
                    delay = min(2 * delay, limits.LINK_RETRY_SECONDS_MAX)
                    continue
                delay = limits.LINK_RETRY_SECONDS_MIN
                self.links_opened += 1
                self.instance = self.link.instance
                self._here.set()
                await self.link.lost.wait()
                self._leave()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._here.clear()
        if self.link is not None:
            self.link.close()
            self.link = None
            self._why = errors.ConnectionLost("the broker went away", hint="it is tried again by itself")

    def _note(self, error: errors.IcestreamError) -> None:
        self._why = errors.ConnectionLost(error.message, hint="it is tried again by itself")

    async def call(self, method: str, arguments: Document, on_event: OnEvent | None = None) -> Document:
        """Raises ConnectionLost at once while the broker is away."""
        if self.link is None:
            raise self._why
        return await self.link.call(method, arguments, on_event)

    async def until_here(self, seconds: float | None = None) -> None:
        """Raises ConnectionLost when the time is over before there is a link. None: waits as long as it takes."""
        try:
            async with asyncio.timeout(seconds):
                await self._here.wait()
        except TimeoutError:
            raise self._why from None
