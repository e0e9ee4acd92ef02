"""Where a checker runs its log: on the simulated disk, or in a real directory with the native thread.

A store outlives processes. `live` is one process: it opens the log, works, and ends without closing anything, as if
killed. What it learned comes back as plain values.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from icestream.model.sync_mode import SyncMode
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log, open_log_on
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.planted.recorded_disk import RecordedDisk
from tests.support.held_sink import HeldSink

FILE_BYTES = 64 * 1024
# A planted bug may leave out the sync that an append waits for.
PATIENCE_SECONDS = 1.0


def options(mode: SyncMode = SyncMode.ALWAYS, **others: Any) -> LogOptions:
    """Small files, no spares but recycled ones, and the writer's thread even where a sync is short."""
    return LogOptions(**{"mode": mode, "file_bytes": FILE_BYTES, "spare_files": 0, "inline_sync_below_us": 0, **others})


class StoreProcess(Protocol):
    """One process on a store."""

    async def open(self, chosen: LogOptions) -> WriteAheadLog: ...

    async def close(self, log: WriteAheadLog) -> None: ...

    def say(self, line: str) -> None:
        """Puts a line into the order of events."""

    def held_syncs(self) -> contextlib.AbstractContextManager[None]:
        """No sync of the writer's thread gets through inside."""

    async def until_held(self, answer: asyncio.Future[Any]) -> None:
        """Waits until the writer's thread is in its first sync inside `held_syncs`, or the answer is there before."""

    def pass_one_sync(self) -> None:
        """Lets one sync through; returns when the thread stands in the next one."""

    def write_fails(self, position: int) -> None:
        """The next write that reaches this position of the file fails near it."""

    def heal(self) -> None:
        """Writes succeed again."""


Work = Callable[[StoreProcess], Awaitable[Any]]


class PlantedStore(Protocol):
    def live(self, work: Work) -> Any: ...

    def copy(self) -> PlantedStore:
        """The same bytes, to be damaged or opened without a trace here."""

    def names(self) -> list[str]: ...

    def content(self, name: str) -> bytes: ...

    def replace(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


# --- the simulated disk -----------------------------------------------------------------------------------------------


class SimulatedProcess:
    def __init__(self, disk: SimulatedDisk, recorded: RecordedDisk) -> None:
        self._disk = disk
        self._recorded = recorded
        self._is_sync_held = False
        self._sink = HeldSink(held=False)
        self._pace: asyncio.Task[None] | None = None

    async def open(self, chosen: LogOptions) -> WriteAheadLog:
        self._sink = HeldSink(held=False)
        log = await open_log_on(self._recorded, chosen, {}, SimulatedClock(), SeededRandomness(1), self._sink)
        self._sink.is_held = True
        self._pace = asyncio.get_running_loop().create_task(self._keep_pace(log))
        return log

    async def _keep_pace(self, log: WriteAheadLog) -> None:
        while True:
            if not self._is_sync_held and self._sink.step():
                log._on_progress()
            await asyncio.sleep(0)

    async def close(self, log: WriteAheadLog) -> None:
        await log.close()
        self.stop()

    def stop(self) -> None:
        if self._pace is not None:
            self._pace.cancel()

    def say(self, line: str) -> None:
        self._recorded.say(line)

    @contextlib.contextmanager
    def held_syncs(self) -> Iterator[None]:
        self._is_sync_held = True
        yield
        self._is_sync_held = False

    async def until_held(self, answer: asyncio.Future[Any]) -> None:
        await asyncio.sleep(0)

    def pass_one_sync(self) -> None:
        """Releases the sync; the loop sees every step of it anyway."""
        self._is_sync_held = False

    def write_fails(self, position: int) -> None:
        self._disk.fail("write", errno.EFBIG)

    def heal(self) -> None:
        """The fault was for one write."""


class SimulatedStore:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.disk = SimulatedDisk(seed)
        self.recorded = RecordedDisk(self.disk)

    def live(self, work: Work) -> Any:
        async def run() -> Any:
            life = SimulatedProcess(self.disk, self.recorded)
            try:
                return await work(life)
            finally:
                life.stop()
                self.disk.kill()

        return asyncio.run(run())

    def copy(self) -> SimulatedStore:
        other = SimulatedStore(self._seed)
        for name in self.names():
            other.replace(name, self.content(name))
        return other

    def names(self) -> list[str]:
        return self.disk.names()

    def content(self, name: str) -> bytes:
        return self.disk.content(name)

    def replace(self, name: str, content: bytes) -> None:
        self.disk.replace(name, content)
        self.recorded = RecordedDisk(self.disk)

    def remove(self, name: str) -> None:
        self.recorded.remove(name)


# --- a real directory -------------------------------------------------------------------------------------------------


class RealProcess:
    def __init__(self, path: Path, output: Path) -> None:
        self._path = path
        self._syncs = 0
        self._recorder = ctypes.CDLL(None)  # the recorder is preloaded: its functions are visible in the whole process
        self._output = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    async def open(self, chosen: LogOptions) -> WriteAheadLog:
        return await open_log(self._path, chosen)

    async def close(self, log: WriteAheadLog) -> None:
        await log.close()

    def say(self, line: str) -> None:
        os.write(self._output, line.encode())

    @contextlib.contextmanager
    def held_syncs(self) -> Iterator[None]:
        self._syncs = self._recorder.syscall_recorder_syncs()
        self._recorder.syscall_recorder_hold(b"log-")
        yield
        self._recorder.syscall_recorder_hold(None)

    async def until_held(self, answer: asyncio.Future[Any]) -> None:
        while not answer.done() and self._recorder.syscall_recorder_syncs() == self._syncs:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def pass_one_sync(self) -> None:
        """Stands still on purpose: the loop must not look before the next sync has begun."""
        before = self._recorder.syscall_recorder_syncs()
        self._recorder.syscall_recorder_pass()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._recorder.syscall_recorder_syncs() == before and time.monotonic() < deadline:
            os.sched_yield()

    def write_fails(self, position: int) -> None:
        """The kernel refuses to write beyond a file size: a short write, then EFBIG."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (position, resource.RLIM_INFINITY))

    def heal(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class DirectoryStore:
    """A store in a directory. Each run is a forked process that ends with `_exit`, as with kill -9."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copies = 0
        self.path = root / "log"
        self.output = root / "said"

    def live(self, work: Work) -> Any:
        source, target = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(source)
            self._be_child(work, target)
        os.close(target)
        with open(source, "rb") as answer:
            content = answer.read()
        os.waitpid(child, 0)
        outcome = json.loads(content)
        assert "failure" not in outcome, outcome["failure"]
        return outcome["value"]

    def _be_child(self, work: Work, target: int) -> None:
        async def run() -> None:
            try:
                answer = {"value": await work(RealProcess(self.path, self.output))}
            except BaseException:  # noqa: BLE001 - the parent gets it
                answer = {"failure": traceback.format_exc()}
            content = json.dumps(answer).encode()
            while content:
                content = content[os.write(target, content) :]
            sys.stderr.flush()
            os._exit(0)

        asyncio.run(run())

    def copy(self) -> DirectoryStore:
        self._copies += 1
        root = self._root / f"copy-{self._copies}"
        shutil.copytree(self.path, root / "log")
        return DirectoryStore(root)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())

    def content(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def replace(self, name: str, content: bytes) -> None:
        (self.path / name).write_bytes(content)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()
