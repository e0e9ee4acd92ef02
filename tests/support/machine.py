"""A computer with a simulated disk and clock, on which one log is opened, used, killed and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from icestream import errors, limits
from icestream.model import ShardKey, SyncMode, TopicIdentity, envelope
from icestream.model.block import Numbering, encode_block, iter_blocks
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.files import Directory
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.runtime.tasks import InlineOffload, Offload
from icestream.wal.appender import AppendBatch, Placed
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink, Sink
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink

TOPICS = (TopicIdentity(1, "/default/a"), TopicIdentity(2, "/default/b", 7))
A, B = ShardKey(1, 0), ShardKey(2, 0)
SMALL: dict[str, Any] = {
    "file_bytes": limits.LOG_FILE_BYTES_MIN,
    "message_bytes_max": 8000,
    "spare_files": 0,
    "quota_bytes": 2**30,
    "checkpoint_every_bytes": 2**40,  # only when the test asks for one
}
# Only a log that waits for ever takes this long: it turns a hanging test into a failing one.
HANGS_SECONDS = 5.0


class Machine:
    """One disk, one clock, one log after the other."""

    def __init__(self, seed: int = 1, mode: SyncMode = SyncMode.ALWAYS, **options: Any) -> None:
        self.disk = SimulatedDisk(seed)
        self.clock = SimulatedClock()
        self.options = LogOptions(mode=mode, **(SMALL | options))
        self.view: Directory = self.disk  # what a log sees of the disk, where a test wraps it
        self.offload: Callable[[str, int], Offload] = lambda name, count: InlineOffload()
        self._crashed: asyncio.Future[None] | None = None

    async def start(self, positions: Mapping[ShardKey, int] | None = None, sink: Sink | None = None) -> WriteAheadLog:
        self._crashed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(self._notice)
        log = await asyncio.wait_for(
            open_log_on(
                self.view, self.options, positions or {}, self.clock, SeededRandomness(1), sink or InlineSink(),
                self.offload,
            ),
            HANGS_SECONDS,
        )  # fmt: skip
        for topic in TOPICS:
            log.declare_topic(topic)
        return log

    async def try_start(self) -> WriteAheadLog | errors.IcestreamError:
        """The log, or why it does not start."""
        try:
            return await self.start()
        except errors.IcestreamError as error:
            return error

    def _notice(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A crash can happen in a callback of the loop, where nothing awaits it."""
        if not isinstance(context.get("exception"), Crash):
            loop.default_exception_handler(context)
        elif self._crashed is not None and not self._crashed.done():
            self._crashed.set_result(None)

    async def survives(self, work: Coroutine[Any, Any, None]) -> bool:
        """Does the work; False when the process crashed in it. Other failures are the test's."""
        assert self._crashed is not None
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({task, self._crashed}, timeout=HANGS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        assert done, "the log waits for ever"
        if not task.done():
            return False
        if isinstance(error := task.exception(), Crash):
            return False
        if error is not None:
            raise error
        return not self._crashed.done()

    async def kill(self) -> None:
        """The process ends, the page cache stays."""
        await self._end()
        self.disk.kill()

    async def power_loss(self) -> None:
        await self._end()
        self.disk.power_loss()

    async def _end(self) -> None:
        """Cancels all tasks of the process that is gone."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._crashed = None


def block(*payloads: bytes, numbering: Numbering | None = None) -> bytes:
    return encode_block(len(payloads), {envelope.PAYLOAD: payloads}, numbering)


def batch(log: WriteAheadLog, key: ShardKey, *payloads: bytes, numbering: Numbering | None = None) -> AppendBatch:
    return log.batch(log.shard(*key), block(*payloads, numbering=numbering))


async def publish(log: WriteAheadLog, key: ShardKey, *payloads: bytes, numbering: Numbering | None = None) -> int:
    """Stores one batch; its base offset."""
    (result,) = await log.append([batch(log, key, *payloads, numbering=numbering)])
    assert isinstance(result, Placed), result
    return result.base_offset


async def settle() -> None:
    """Lets everything happen that needs no disk."""
    for _ in range(5):
        await asyncio.sleep(0)


async def turn(log: WriteAheadLog, sink: HeldSink, steps: int = 1000) -> int:
    """Lets the disk do that many operations, and the log hear of each; how many it did."""
    done = 0
    await settle()
    while done < steps and sink.step():
        done += 1
        log._on_progress()
        await settle()
    return done


async def messages(
    log: WriteAheadLog, key: ShardKey, offset: int | None = None, max_bytes: int = 50_000
) -> dict[int, bytes]:
    """Every message of the shard that the log holds (from an offset on), by offset."""
    if key not in log.state.shards:
        return {}
    payloads: dict[int, bytes] = {}
    at = log.reader.earliest(key) if offset is None else offset
    while True:
        result = await log.reader.read(key, at, max_bytes)
        for section in result.sections:
            values = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
            assert len(values) == section.rows
            payloads.update(enumerate((value for value in values if isinstance(value, bytes)), section.base_offset))
        if result.next_offset == at:
            return payloads
        at = result.next_offset


def undeclared(log: WriteAheadLog, key: ShardKey, stored: Mapping[int, bytes]) -> list[int]:
    """Offsets from the first that the log holds to the next one to be given that are no message and in no gap."""
    ends = {gap.start: gap.end for gap in log.gaps(key)}
    at, missing = log.reader.earliest(key), []
    while at < log.shard(*key).assigned:
        if at in ends:
            at = ends[at]
            continue
        if at not in stored:
            missing.append(at)
        at += 1
    return missing
