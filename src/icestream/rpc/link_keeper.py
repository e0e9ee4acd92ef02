"""LinkKeeper: keeps a process connected to its broker, reconnecting with backoff.

disconnected --a link opened--> connected --it was lost--> disconnected
while disconnected: an attempt every LINK_RETRY_SECONDS_MIN, doubling up to LINK_RETRY_SECONDS_MAX
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from icestream import errors, limits
from icestream.rpc import handshake
from icestream.rpc.backoff import RetryBackoff
from icestream.rpc.document import Document
from icestream.rpc.link import Link, OnEvent, open_link
from icestream.runtime.clock import Clock

_RETRY_HINT = "the call is retried automatically"


def _no_credential() -> None:
    return None


class LinkKeeper:
    """The link of one process to its broker, and the reason while there is none."""

    def __init__(
        self,
        path: Path,
        client: str,
        clock: Clock,
        credential: Callable[[], handshake.HelloCredential | None] = _no_credential,
    ) -> None:
        """`credential` is called for each link: it may have changed since the last one."""
        self._path = path
        self._credential = credential
        self._client = client
        self._clock = clock
        self._connected = asyncio.Event()
        self._error = errors.ConnectionLost(f"not connected to the broker at {path} yet", hint=_RETRY_HINT)
        self.link: Link | None = None
        self.links_opened = 0
        self.instance = ""  # of the broker of the last link (runtime/instance.py)

    @property
    def is_connected(self) -> bool:
        return self.link is not None

    async def run(self) -> None:
        """Keeps the link open until the task is cancelled."""
        # No jitter: only the few processes of this machine connect to its broker.
        backoff = RetryBackoff(None, limits.LINK_RETRY_SECONDS_MIN, limits.LINK_RETRY_SECONDS_MAX)
        try:
            while True:
                try:
                    self.link = await open_link(self._path, self._client, self._credential())
                except errors.IcestreamError as error:
                    self._error = errors.ConnectionLost(str(error), hint=_RETRY_HINT)
                    await self._clock.sleep(backoff.next_seconds())
                    continue
                backoff.reset()
                self.links_opened += 1
                self.instance = self.link.instance
                self._connected.set()
                await self.link.lost.wait()
                self._drop_link()
        finally:
            self._drop_link()

    def _drop_link(self) -> None:
        self._connected.clear()
        if self.link is not None:
            self.link.close()
            self.link = None
            self._error = errors.ConnectionLost("the connection to the broker was lost", hint=_RETRY_HINT)

    async def call(self, method: str, arguments: Document, on_event: OnEvent | None = None) -> Document:
        """Calls the broker (`Link.call`). Raises ConnectionLost immediately while there is no link."""
        if self.link is None:
            raise self._error
        return await self.link.call(method, arguments, on_event)

    async def wait_connected(self, seconds: float | None = None) -> None:
        """Waits for a link; None: without a time limit. Raises ConnectionLost if there is none within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._connected.wait()
        except TimeoutError:
            raise self._error from None
