"""A computer with a simulated disk and clock, on which one metadata store is opened, used, killed and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from icestream import errors, limits
from icestream.metadata.core import CoreFactory
from icestream.metadata.entry import Entry
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, open_metadata_on
from icestream.metadata.snapshot import encode_snapshot
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.files import Directory
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal.sink import InlineSink, Sink
from tests.support.held_sink import HeldSink

# Small files, so that few commands fill one; snapshots only when the test asks for one.
SMALL: dict[str, Any] = {"log_file_bytes": 16 * limits.KIB, "snapshot_every_bytes": 2**40}
# Only a store that waits for ever takes this long: it turns a hanging test into a failing one.
HANGS_SECONDS = 5.0


class MetadataMachine:
    """One disk, one clock, one store after the other."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        self.disk = SimulatedDisk(seed)
        self.clock = SimulatedClock()
        self.options = MetadataOptions(**(SMALL | options))
        self.view: Directory = self.disk  # what a store sees of the disk, where a test wraps it
        self.core: CoreFactory = SoloCore
        self._crashed: asyncio.Future[None] | None = None

    async def open(self, sink: Sink | None = None) -> NodeStore:
        """The store, which may not be ready yet."""
        self._expect_a_crash()
        return await open_metadata_on(
            self.view, self.clock, SeededRandomness(1), sink or InlineSink(), self.options, core_factory=self.core
        )

    async def start(self, sink: Sink | None = None) -> NodeStore:
        store = await self.open(sink)
        await asyncio.wait_for(store.ready(), HANGS_SECONDS)
        return store

    def _expect_a_crash(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._notice)
        self._crashed = self._crashed or loop.create_future()
        return self._crashed

    def _notice(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A crash can happen in a callback of the loop, where nothing awaits it."""
        if not isinstance(context.get("exception"), Crash):
            loop.default_exception_handler(context)
        elif self._crashed is not None and not self._crashed.done():
            self._crashed.set_result(None)

    async def survives(self, work: Coroutine[Any, Any, None]) -> bool:
        """Does the work; False when the process crashed in it. Other failures are the test's."""
        crashed = self._expect_a_crash()
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({task, crashed}, timeout=HANGS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert done, "the store waits for ever"
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return False
        error = task.exception()
        if isinstance(error, Crash) or crashed.done():
            return False
        if error is not None:
            raise error
        return True

    async def kill(self) -> None:
        """The process ends, the page cache stays."""
        await self._end()
        self.disk.kill()

    async def power_loss(self) -> None:
        await self._end()
        self.disk.power_loss()

    async def end(self, how: str) -> None:
        await (self.kill() if how == "kill" else self.power_loss())

    async def _end(self) -> None:
        """Cancels all tasks of the process that is gone."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._crashed = None


async def contents(store: NodeStore) -> dict[str, bytes]:
    """Every key with its value."""
    return {key: entry.value for key, entry in await store.list_all("")}


def entries(store: NodeStore) -> dict[str, Entry]:
    return dict(store.node.machine.entries.items())


def state_bytes(store: NodeStore) -> bytes:
    return encode_snapshot(store.node.machine)


async def settle() -> None:
    """Lets everything happen that needs no disk."""
    for _ in range(5):
        await asyncio.sleep(0)


async def turn(store: NodeStore, sink: HeldSink, steps: int = 1000) -> int:
    """Lets the disk do that many operations, and the store hear of each; how many it did."""
    done = 0
    await settle()
    while done < steps and sink.step():
        done += 1
        store.node._on_news()
        await settle()
    return done


async def outcome(answer: asyncio.Future[Any]) -> Any:
    """The answer of a call, or its error."""
    try:
        return await asyncio.wait_for(asyncio.shield(answer), HANGS_SECONDS)
    except errors.IcestreamError as error:
        return error


def reader_of(data: bytes) -> Callable[[int], bytes]:
    """Reads a snapshot that is in memory."""
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        chunk = data[at : at + size]
        at += len(chunk)
        return chunk

    return read
