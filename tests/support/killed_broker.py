"""A broker on one directory and one port, killed and restarted as often as a test likes, and its internal calls."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from icestream import errors
from icestream.rpc.link import Link, open_link
from tests.support.free_ports import free_ports
from tests.support.serve_process import ServeProcess

Written = Callable[[str, bytes, int], None]
CURSORS = "/persistent_storage/iceberg/subscriptions/"


class KilledBroker:
    def __init__(self, folder: Path, mode: str) -> None:
        self.folder = folder
        self._mode = mode
        (self._port,) = free_ports(1)  # not one that another process gets by chance while no broker listens there
        self._process: ServeProcess | None = None
        self.start_seconds = 0.2  # the last time

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def begin(self, cursor_flush_ms: int) -> None:
        """Starts the broker without waiting for it."""
        settings = {
            "storage.iceberg_config.wal.sync_mode": self._mode,
            "broker.cursor_flush_ms": cursor_flush_ms,
            "ports.native": self._port,
        }
        flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
        self._process = await asyncio.to_thread(lambda: ServeProcess(self.folder, *flags, is_fork=True))

    async def start(self, cursor_flush_ms: int) -> None:
        began = time.monotonic()
        await self.begin(cursor_flush_ms)
        assert self._process is not None
        await asyncio.to_thread(self._process.greeting)
        self.start_seconds = time.monotonic() - began

    async def kill(self) -> None:
        assert await self._end(signal.SIGKILL) == -signal.SIGKILL, "the broker had ended by itself"

    async def stop(self) -> None:
        assert await self._end(signal.SIGTERM) == 0, "the broker did not stop cleanly"

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        code, _ = await asyncio.to_thread(process.stop, number)
        return code

    def close(self) -> None:
        if self._process is not None:
            self._process.__exit__()

    async def look(self) -> InternalCalls:
        return InternalCalls(await open_link(self.folder / "broker.sock", "test"))


class InternalCalls:
    """The internal calls of a broker, as another process of its node makes them."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._broken: AssertionError | None = None

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Raises what a watch found."""
        answer = await self._link.call(method, arguments)
        if self._broken is not None:
            raise self._broken
        return answer

    async def revision(self) -> int:
        return int((await self.call("metadata_revision"))["revision"])

    async def entries(self, prefix: str) -> list[tuple[str, bytes, int]]:
        """Key, value, and the revision that wrote it."""
        answer = await self.call("metadata_list", prefix=prefix)
        assert not answer["more"], "a test with so many entries reads them page by page"
        return [(key, entry[0], entry[2]) for key, entry in answer["entries"]]

    async def watch(self, prefix: str, after: int, written: Written) -> None:
        """Reports every value that is written from then on, until the broker is gone."""

        def on_event(event: dict[str, Any]) -> None:
            try:
                assert event["event"] in ("changes", "lost"), event
                for key, value in event.get("changes", ()):
                    written(key, value, event["revision"])
            except AssertionError as error:
                self._broken = self._broken or error

        await self._link.call("metadata_watch", {"prefix": prefix, "after": after}, on_event)

    async def lags(self, topic: str) -> dict[str, int]:
        answer = await self.call("page_subscriptions", topic=topic)
        return {item["subscription"]: item["lag"] for item in answer["items"]}

    async def close(self) -> None:
        self._link.close()


LOST = (errors.ConnectionLost, errors.ShuttingDown, errors.NotReady)
