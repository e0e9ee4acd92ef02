"""The log as the rest of the broker sees it: appends that are acked, reads, a floor. The shell around appender.py.

A tick: `submit` queues batches and asks for one flush at the end of the loop's tick; `_flush` hands all of them to
the appender, which makes one record of them, and the record to the sink; the sink's news (`_on_progress`) releases the
acks. Everything here runs on the loop's thread; blocking work goes to the sink's thread or through `Offload`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from icestream import errors
from icestream.model.block import BlockHead, block_head, new_tuple
from icestream.model.shard import Gap, ShardKey, Topic
from icestream.model.sync_mode import SyncMode
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import log_file
from icestream.wal.admission import Quota, admit, quota_of
from icestream.wal.appender import Appender, Batch, Result
from icestream.wal.backlog import BacklogReader
from icestream.wal.ballast import Ballast, ballast_bytes, found_bytes
from icestream.wal.floors import Floors
from icestream.wal.options import LogOptions, too_large
from icestream.wal.reader import Reader
from icestream.wal.receipt import Receipt
from icestream.wal.recovery import Recovered
from icestream.wal.request import Request, Requests, size_of
from icestream.wal.retainer import Retainer
from icestream.wal.sink import NativeSink, Sink, SinkError
from icestream.wal.spiller import Spiller
from icestream.wal.state import LogState, Shard
from icestream.wal.tail import Tail
from icestream.wal.tick_clock import TickClock
from icestream.wal.turnstile import Turnstile
from icestream.wal.upkeep import Upkeep
from icestream.wal.waiters import Waiters

_log = get_logger("wal")


class Log:
    """Open one with `icestream.wal.open.open_log`."""

    def __init__(
        self,
        directory: Directory,
        lock: File,
        options: LogOptions,
        clock: Clock,
        sink: Sink,
        maintenance: Offload,
        reads: Offload,
        recovered: Recovered,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._lock = lock
        self._options = options
        self._clock = clock
        self._sink = sink
        self._maintenance = maintenance
        self._reads = reads
        self._tasks = Tasks(self._task_failed)
        self.log_id = recovered.log_id
        self.report = recovered.report
        self.state: LogState = recovered.state
        self.tail = Tail(options.tail_bytes, options.tail_ttl_ms)
        self.appender = Appender(self.state, options.mode, options.align_bytes, self.tail)
        self.upkeep = Upkeep(
            directory, clock, maintenance, options, self.appender, recovered, self._tasks, self._file_ready
        )
        self.backlog = BacklogReader(self.state, self.appender, self.upkeep, clock)
        self.reader = Reader(self.state, self.appender, self.upkeep, directory, reads, self.wait_released)
        self.floors = Floors(self.state, self.upkeep, self.reader.earliest)
        self.retainer = Retainer(
            self.state, self.upkeep, clock, self._tasks, lambda: self._next_seal(self.appender.sealed_count),
            lambda: self._options,
        )  # fmt: skip
        self.spiller = Spiller(directory, clock, maintenance, self._tasks, self.upkeep, self.reader, options)
        self.quota = self._make_quota()
        self.upkeep.quota, self.upkeep.ballast = lambda: self.quota, self._make_ballast()
        self.stopped: errors.LogStopped | None = None
        self.on_stop: Callable[[errors.LogStopped], None] = lambda _: None
        self._requests = Requests()
        self.turnstile = Turnstile()  # who waits for room
        self._waiters = Waiters()
        self._flush_planned = False
        self._ticks = TickClock(clock)
        self._row_bytes_max = options.batch_bytes_max
        self._rows_bytes_max = options.rows_bytes_max
        self._closing = False
        self._closed: errors.LogClosed | None = None
        self._rolled_back = False  # a write failed since the log was opened

    # --- start ---

    async def start(self) -> None:
        """The first file, the gaps that recovery found, the background work."""
        if self._sink.fileno() >= 0:
            self._loop.add_reader(self._sink.fileno(), self._on_progress)
        await self.upkeep.look_at_ballast(is_start=True)
        await self.upkeep.prepare_next()
        if not self.upkeep.ballast.is_given:  # else it starts all the same: what drains the log needs it
            self._check_prepared()
        if self.report.gaps:
            await self.write_gaps(self.report.gaps)
        await self.upkeep.name_first_file()
        if self._options.mode is SyncMode.PERIODIC:
            self._tasks.start(self._sync_periodically(), "wal-sync")
        self.upkeep.free_in_time()
        self.spiller.look()
        if self._options.spare_files:
            self._tasks.start(self._keep_spares(), "wal-spares")

    def _check_prepared(self) -> None:
        if error := self.upkeep.prepare_error:
            message = f"no log file can be made: {error}"
            raise errors.DiskFull(message, hint="free disk space and start again") from error

    async def write_gaps(self, gaps: Sequence[Gap]) -> None:
        """On disk before anything else. Without that note the numbers in a gap, which somebody may have seen, would be
        given away again: a start, or a takeover, that cannot write it is none."""
        self.appender.rotate()
        while gaps := gaps[self.appender.declare(gaps, self._clock.wall_us()) :]:
            self._carry_out()
            self.upkeep.provision()
            await self._until(lambda: not self.upkeep.preparing)
            self._check_prepared()
            self._check_gaps_written()
        self.appender.plan_sync()
        lsn = self.state.lsn
        self._carry_out()
        await self._until(lambda: self.appender.synced_lsn >= lsn or self._rolled_back)
        self._check_gaps_written()

    def _check_gaps_written(self) -> None:
        if self._rolled_back:
            raise errors.LogError(
                "the gaps that the start found could not be written", hint="check the disk and start again"
            )

    def _make_quota(self) -> Quota:
        wanted, used_bytes = self._options, self.upkeep.used_bytes + (found_bytes(self._directory) or 0)
        return quota_of(wanted.quota_bytes, wanted.topic_quota_bytes, self._directory.free_bytes(), used_bytes)

    def _make_ballast(self) -> Ballast:
        free_bytes = self._directory.free_bytes() + (found_bytes(self._directory) or 0)
        wanted = self._options.ballast_bytes
        size = ballast_bytes(wanted, self.quota.node_bytes, free_bytes, self.upkeep.used_bytes)
        return Ballast(self._directory, size, self._options.file_bytes)

    # --- topics and shards ---

    def declare_topic(self, topic: Topic) -> None:
        """Names a topic id. The name goes into every file that uses the id."""
        self.state.declare(topic)

    def shard(self, topic_id: int, shard: int = 0) -> Shard:
        return self.state.shard(ShardKey(topic_id, shard))

    def batch(self, shard: Shard, block: bytes, head: BlockHead | None = None) -> Batch:
        """A block as a batch, checked for size. `head`: of the block, where somebody has looked at it already."""
        rows, size, numbering = head or block_head(block)
        if size != len(block):
            raise errors.InvalidInput(f"block header declares {size} bytes, received {len(block)}")
        allowed = self._rows_bytes_max if rows > 1 else self._row_bytes_max
        if size > allowed:
            raise too_large(rows, size, allowed)
        return new_tuple(Batch, (shard, rows, block, numbering))

    @property
    def batch_bytes_max(self) -> int:
        """The largest block of more than one message."""
        return self._rows_bytes_max

    @property
    def sync_seconds(self) -> float | None:
        """What a sync takes at present; None where nobody measures it."""
        return self._sink.sync_seconds if isinstance(self._sink, NativeSink) else None

    def gaps(self, key: ShardKey) -> list[Gap]:
        return list(self.state.gaps.get(key, ()))

    # --- append ---

    async def append(self, batches: Sequence[Batch]) -> list[Result]:
        """Stores the batches; the answer comes when their acks may leave.

        Waits near a quota and while too many bytes are in flight. Raises Refused when nothing was stored,
        OutcomeUnknown when the disk failed in between; a single batch's own trouble is its result.
        """
        size = size_of(batches)
        pause = self._admit(batches, size)
        if pause:
            metrics.APPENDS_SLOWED.inc()
            await self._clock.sleep(pause)
        if self.turnstile or not self.has_room(size):
            await self.turnstile.wait(lambda: self._may_pass(size))
            self._admit(batches, size)
        elif pause:
            self._admit(batches, size)
        return await self._enqueue(batches, size)

    def _may_pass(self, size: int) -> bool:
        self._check_open()
        return self.has_room(size)

    def submit(self, batches: Sequence[Batch]) -> Receipt:
        """As `append`, but at once: raises InFlightFull instead of waiting."""
        size = size_of(batches)
        pause = self._admit(batches, size)
        if not self.has_room(size):
            raise errors.InFlightFull(
                f"{self.in_flight_bytes} bytes wait for the disk", hint="wait for acks before sending more"
            )
        receipt = self._enqueue(batches, size)
        if pause:
            receipt.pause_ms = int(1000 * pause)
        return receipt

    def _enqueue(self, batches: Sequence[Batch], size: int) -> Receipt:
        self._check_open()
        request = Request(batches, size)
        self._requests.add(request)
        self._plan_flush()
        return request

    @property
    def in_flight_bytes(self) -> int:
        return self._requests.queued_bytes + self.appender.in_flight_bytes

    async def wait_for_room(self, size: int) -> None:
        """Until `submit` takes so many bytes; in turn with everybody who waits. Whoever is let in submits at once."""
        await self.turnstile.wait(lambda: self._may_pass(size))

    def has_room(self, size: int) -> bool:
        """Whether `submit` would take so many bytes now."""
        in_flight = self._requests.queued_bytes + self.appender.in_flight_bytes
        return not in_flight or in_flight + size <= self._options.in_flight_bytes

    def _admit(self, batches: Sequence[Batch], size: int) -> float:
        taken = self.upkeep.used_bytes + self._requests.queued_bytes
        quota = self.quota
        # warm files are room, but what is still there counts when it comes to it: somebody may hold them
        used = taken - self.upkeep.warm.bytes if taken + size <= quota.node_bytes else taken
        if used + size <= quota.slow_node_bytes:
            slow = quota.slow_topic_bytes - size
            for batch in batches:
                if batch.shard.usage.held_bytes > slow:
                    break
            else:
                return 0.0
        try:
            return max(
                admit(quota, used, batch.shard.usage.held_bytes, size, batch.shard.topic.name) for batch in batches
            )
        except errors.Refused as error:
            metrics.APPENDS_REFUSED.labels(error.code).inc()
            raise

    def _check_open(self) -> None:
        if self.stopped:
            raise self.stopped
        if self._closing:
            raise _closed()

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """One tick: everything queued becomes as few records as possible."""
        self._flush_planned = False
        if self.stopped or not self._requests.queue:
            return
        requests = list(self._requests.queue)
        batches = requests[0].batches if len(requests) == 1 else [batch for one in requests for batch in one.batches]
        results = self.appender.append(batches, self._ticks.now_us())
        whole = len(results) == len(batches)
        self._requests.hand_out(requests, results, self.appender.released_lsn, whole=whole)
        self._carry_out()
        self.upkeep.provision()
        if self._requests.queue and self.upkeep.prepare_error and not self.upkeep.preparing:
            self._refuse_queue()
        if self._waiters:
            self._waiters.look(self.stopped)

    def _file_ready(self) -> None:
        if self._requests.queue:
            self._plan_flush()
        self._waiters.look(self.stopped)

    def _carry_out(self) -> None:
        writes = self.appender.take_writes()
        if writes:
            if self._sink.submit(writes, self.upkeep.handles):
                self._on_progress()
            metrics.WAL_WRITES.value += len(writes)
            metrics.WAL_BYTES.value += sum([len(write.data) for write in writes])

    # --- completions ---

    def _on_progress(self) -> None:
        progress = self._sink.progress()
        self.appender.progress(progress.written, progress.synced)
        self._release()
        for sealed in self.appender.take_sealed():
            self.upkeep.file_sealed(sealed)
        if progress.error and not self.stopped:
            self._failed(progress.error)
            self._release()
        if self._waiters:
            self._waiters.look(self.stopped)
        self.upkeep.provision()
        if self._requests.queue:
            self._plan_flush()

    def _release(self) -> None:
        self._requests.release(self.appender.released_lsn)
        self.turnstile.wake()
        moved, self.appender.moved = self.appender.moved, []
        for shard in moved:
            if shard.on_visible is not None:
                shard.on_visible()

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        """Waits until progress makes it true."""
        if error := self.stopped or self._closed:
            raise error
        await self._waiters.until(is_reached)

    async def wait_released(self, lsn: int) -> None:
        """Until a record may be seen by readers."""
        await self._until(lambda: self.appender.released_lsn >= lsn)

    # --- failures ---

    def _failed(self, error: SinkError) -> None:
        if error.operation == "sync":
            self._stop(error)
            return
        final = self._sink.halt()
        self.appender.progress(final.written, final.synced)
        if final.error is not None and final.error.operation == "sync":
            self._stop(final.error)  # a sync that was under way beside the write
            return
        metrics.WAL_WRITE_FAILURES.inc()
        self._rolled_back = True
        _log.error("a write failed: going back to the last acknowledged record", errno=error.errno)
        self._requests.release(self.appender.released_lsn)  # written before the error, and only now known to be
        ended = self.appender.write_failed()
        unknown = errors.OutcomeUnknown(
            f"a write to the log failed (errno {error.errno})", hint="retry with the same sequence number"
        )
        self._requests.fail_waiting(unknown)
        self._requests.fail_begun(unknown)
        # what waits behind would be stored before what failed comes again (hazard 37)
        self._requests.fail_queue(
            errors.DiskFull("a write before this one failed", hint="check the disk; send it again")
        )
        try:
            for sealed in ended:
                self.upkeep.end_file(sealed)
        except OSError as failure:
            self._stop(SinkError(error.ticket, "sync", failure.errno or 0))
            return
        self.appender.files_ended()
        if self._sink.fileno() >= 0:
            self._loop.remove_reader(self._sink.fileno())
        self._sink.restart()
        if self._sink.fileno() >= 0:
            self._loop.add_reader(self._sink.fileno(), self._on_progress)

    def _stop(self, error: SinkError) -> None:
        """A sync failed: what is on disk is not known. Nothing is acked any more; the next start finds out (6)."""
        self.stopped = errors.LogStopped(
            f"a sync of the log failed (errno {error.errno}): the node stops",
            hint="check the disk, then start again: recovery writes the unsealed part anew",
        )
        _log.error("a sync failed: the log stops", errno=error.errno)
        with contextlib.suppress(OSError, FileExistsError):
            self._directory.create(log_file.SYNC_FAILED_NAME).close()
            self._directory.sync()
        unknown = errors.OutcomeUnknown("the log stopped before this was confirmed", hint=self.stopped.hint)
        self._requests.fail_waiting(unknown)
        self._requests.fail_queue(self.stopped)
        self.turnstile.fail(self.stopped)
        self._waiters.look(self.stopped)
        self.on_stop(self.stopped)

    def _task_failed(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            metrics.WAL_MAINTENANCE_FAILURES.inc()
        else:
            self._loop.call_exception_handler({"message": "a background task of the log failed", "exception": error})

    def _refuse_queue(self) -> None:
        """The disk has no room for another file: what has no offsets yet is refused, and can be sent again later."""
        error = errors.DiskFull(
            f"no room for another log file: {self.upkeep.prepare_error}",
            hint="free disk space; appends go on by themselves",
        )
        refused = self._requests.refuse(error, self.appender.released_lsn)
        metrics.APPENDS_REFUSED.labels(error.code).inc(refused)
        self.turnstile.wake()

    # --- sync and floor ---

    async def sync(self) -> int:
        """Makes everything appended so far durable, in every mode; the LSN reached."""
        self._check_open()
        self._flush()
        lsn = self.appender.state.lsn
        if self.appender.synced_lsn < lsn:
            self.appender.plan_sync()
            self._carry_out()
            # a failed write may take back what was to be synced: then the end of the log is what counts
            await self._until(lambda: self.appender.synced_lsn >= min(lsn, self.state.lsn))
        return lsn

    async def _sync_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._options.sync_interval_ms / 1000)
            if self.stopped:  # the kernel would say yes, and have dropped the pages (hazard 6)
                return
            file = self.appender.file
            if file is not None and self.appender.synced_lsn < self.appender.released_lsn:
                self._sink.request_sync(self.upkeep.handles[file.number])
                if self._sink.fileno() < 0:
                    self._on_progress()

    async def advance_floor(self, floors: Mapping[ShardKey, int]) -> None:
        """Everything below these offsets is durable elsewhere. Frees the files that nobody needs any more."""
        self._check_open()
        await self.floors.advance(floors)

    async def checkpoint(self) -> None:
        """Writes a checkpoint now, and frees what it allows."""
        self._check_open()
        await self.upkeep.checkpoint()
        await self.upkeep.free_files()

    async def _keep_spares(self) -> None:
        while True:
            await self.upkeep.make_spares()
            await self._next_seal(self.appender.sealed_count)

    async def _next_seal(self, sealed: int) -> None:
        await self._until(lambda: self.appender.sealed_count != sealed)

    # --- end ---

    async def close(self) -> None:
        """Finishes what was taken, seals the file, writes a clean checkpoint. The next start has nothing to recover.

        Raises LogStopped when a sync fails on the way: then the next start has. Everything is let go of all the same.
        """
        if self._closing:
            return
        try:
            if not self.stopped:
                await self._until(lambda: not self._requests)
            self._closing = self.upkeep.closing = True
            await self._tasks.stop()
            if not self.stopped:
                await self._seal_last()
                await self.upkeep.settle()
        finally:
            self._closing = self.upkeep.closing = True
            await self._let_go()

    async def _let_go(self) -> None:
        await self._tasks.stop()
        if self._sink.fileno() >= 0:
            self._loop.remove_reader(self._sink.fileno())
        self._sink.close()
        self.upkeep.close()
        self._maintenance.close()
        self._reads.close()
        self._lock.close()
        self._directory.close()
        self._closed = _closed()
        self._waiters.look(self._closed)

    async def _seal_last(self) -> None:
        if self.appender.file is not None:
            self.appender.close()
            self._carry_out()
            await self._until(lambda: not self.appender.sealing())


def _closed() -> errors.LogClosed:
    return errors.LogClosed("the log is closed", hint="the broker is shutting down: connect again later")
