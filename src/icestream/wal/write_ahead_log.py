"""The write-ahead log as the rest of the broker sees it: acknowledged appends, reads, and the floor of each shard.

This is the I/O shell around appender.py. One tick: `submit` queues batches and schedules one flush at the end of the
loop's iteration; `_flush` hands everything queued to the appender, which builds one record, and passes the record to
the sink; when the sink reports completions, `_on_progress` releases the acknowledgements. Everything in this module
runs on the event loop's thread; blocking work runs in the sink's thread or through `Offload`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from icestream import errors, limits
from icestream.model.block import BlockHead, decode_block_head, new_tuple
from icestream.model.shard import DeclaredGap, ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.observability.spans import now_ns, record, tracing
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import log_file
from icestream.wal.admission import Quota, admit, quota_of
from icestream.wal.append_queue import AppendQueue, AppendRequest, total_block_bytes
from icestream.wal.appender import AppendBatch, Appender, AppendGroup, Result, group_cost_max
from icestream.wal.backlog_reader import BacklogReader
from icestream.wal.ballast import Ballast, ballast_bytes, existing_ballast_bytes
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.floors import Floors
from icestream.wal.log_options import LogOptions, too_large
from icestream.wal.log_waiters import AdmissionQueue, ConditionWaiters
from icestream.wal.reader import Reader
from icestream.wal.receipt import Receipt
from icestream.wal.recovery import RecoveredWal
from icestream.wal.retention_job import RetentionJob
from icestream.wal.sink import NativeSink, Sink, SinkError
from icestream.wal.spill_job import SpillJob
from icestream.wal.state import LogState, Shard
from icestream.wal.tail import Tail

_log = get_logger("wal")


class WriteAheadLog:
    """One open log directory. `icestream.wal.open_log.open_log` opens it; `close` must be called in the end."""

    def __init__(
        self,
        directory: Directory,
        lock: File,
        options: LogOptions,
        clock: Clock,
        sink: Sink,
        maintenance: Offload,
        reads: Offload,
        recovered: RecoveredWal,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory = directory
        self._lock = lock
        self._options = options
        self._clock = clock
        self._sink = sink
        self._maintenance = maintenance
        self._reads = reads
        self._tasks = Tasks(self._on_task_failed)
        self.log_id = recovered.log_id
        self.report = recovered.report
        self.state: LogState = recovered.state
        self.tail = Tail(options.tail_bytes, options.tail_ttl_ms)
        self.appender = Appender(self.state, options.mode, options.align_bytes, self.tail)
        self.lifecycle = FileLifecycle(
            directory, clock, maintenance, options, self.appender, recovered, self._tasks, self._on_file_ready
        )
        self.backlog = BacklogReader(self.state, self.appender, self.lifecycle, clock)
        self.reader = Reader(self.state, self.appender, self.lifecycle, directory, reads, self.wait_released)
        self.floors = Floors(self.state, self.lifecycle, self.reader.earliest)
        self.retention_job = RetentionJob(
            self.state, self.lifecycle, clock, self._tasks, lambda: self._next_seal(self.appender.sealed_count),
            lambda: self._options,
        )  # fmt: skip
        self.spill_job = SpillJob(directory, clock, maintenance, self._tasks, self.lifecycle, self.reader, options)
        self.quota = self._make_quota()
        self.lifecycle.quota, self.lifecycle.ballast = lambda: self.quota, self._make_ballast()
        self.stopped: errors.LogStopped | None = None
        self.on_stop: Callable[[errors.LogStopped], None] = lambda _: None
        self._requests = AppendQueue()
        self.admission_queue = AdmissionQueue()  # appends that wait for room in flight
        self._waiters = ConditionWaiters()
        self._is_flush_scheduled = False
        self._last_tick_us = 0
        self._row_bytes_max = options.batch_bytes_max
        self._rows_bytes_max = options.rows_bytes_max
        self._closing = False
        self._closed: errors.LogClosed | None = None
        self._has_rolled_back = False  # a write failed since the log was opened

    # --- start ---

    async def start(self) -> None:
        """Prepares the first file, writes the gaps that recovery declared, and starts the background tasks."""
        if self._sink.fileno() >= 0:
            self._loop.add_reader(self._sink.fileno(), self._on_progress)
        # The ballast comes before the first file: what it reserves must not be taken by a log file.
        await self.lifecycle.update_ballast(is_start=True)
        await self.lifecycle.prepare_next()
        # On a full disk the log starts without a file for appends: draining it needs a running broker.
        if not self.lifecycle.ballast.is_released:
            self._check_prepared()
        # Before the first append: offsets of a gap, which a client may have seen, must not be assigned again.
        if self.report.gaps:
            await self.write_gaps(self.report.gaps)
        # Before any append is accepted: a first file that is deleted later is noticed by the next start (ADR 41).
        await self.lifecycle.checkpoint_first_file()
        if self._options.mode is SyncMode.PERIODIC:
            self._tasks.start(self._sync_periodically(), "wal-sync")
        self.lifecycle.schedule_freeing()
        self.spill_job.start_under_pressure()
        if self._options.spare_files:
            self._tasks.start(self._keep_spares(), "wal-spares")

    def _check_prepared(self) -> None:
        if error := self.lifecycle.prepare_error:
            message = f"cannot create a log file: {error}"
            raise errors.DiskFull(message, hint="free disk space and start again") from error

    async def write_gaps(self, gaps: Sequence[DeclaredGap]) -> None:
        """Writes declared gaps and syncs them before any append. Raises LogError or DiskFull if that fails.

        Without the note on disk the offsets of a gap, which a client may have seen, would be assigned again. A start or
        takeover that cannot write it has failed.
        """
        self.appender.rotate()
        # Many gaps may need several files; each turn waits until the next file is prepared.
        while gaps := gaps[self.appender.declare_gaps(gaps, self._clock.wall_us()) :]:
            self._submit_writes()
            self.lifecycle.provision()
            await self._wait_until(lambda: not self.lifecycle.preparing)
            self._check_prepared()
            self._check_gaps_written()
        self.appender.plan_sync()
        lsn = self.state.lsn
        self._submit_writes()
        await self._wait_until(lambda: self.appender.synced_lsn >= lsn or self._has_rolled_back)
        self._check_gaps_written()

    def _check_gaps_written(self) -> None:
        if self._has_rolled_back:
            raise errors.LogError(
                "cannot write the gaps declared by recovery: a write failed", hint="check the disk and start again"
            )

    def _make_quota(self) -> Quota:
        """The quotas as configured, or derived from the disk.

        The ballast counts as used space, else the derived quota would change when it is released.
        """
        options, used_bytes = self._options, self.lifecycle.used_bytes + (existing_ballast_bytes(self._directory) or 0)
        return quota_of(options.quota_bytes, options.topic_quota_bytes, self._directory.free_bytes(), used_bytes)

    def _make_ballast(self) -> Ballast:
        free_bytes = self._directory.free_bytes() + (existing_ballast_bytes(self._directory) or 0)
        configured = self._options.ballast_bytes
        size = ballast_bytes(configured, self.quota.node_bytes, free_bytes, self.lifecycle.used_bytes)
        return Ballast(self._directory, size, self._options.file_bytes)

    # --- options ---

    def change_options(self, wanted_options: LogOptions) -> None:
        """Applies those options that may change while the log runs; ignores all others.

            quota_bytes, topic_quota_bytes     from the next append on; stored messages stay
            in_flight_bytes                    at once: waiting appends check again
            sync_interval_ms                   from the next sync of mode `periodic` on
            inline_sync_below_us               from the next write on
            checkpoint_every_bytes             when the next file is sealed
            retention_step_percent             with the next retention step
            warm_ms, warm_bytes                at once: files kept longer than that are freed

        The others are fixed at the start, because files, threads and buffers were created by them.
        """
        old_options = self._options
        options = replace(
            old_options,
            quota_bytes=wanted_options.quota_bytes,
            topic_quota_bytes=wanted_options.topic_quota_bytes,
            in_flight_bytes=wanted_options.in_flight_bytes,
            sync_interval_ms=wanted_options.sync_interval_ms,
            inline_sync_below_us=wanted_options.inline_sync_below_us,
            checkpoint_every_bytes=wanted_options.checkpoint_every_bytes,
            retention_step_percent=wanted_options.retention_step_percent,
            warm_ms=wanted_options.warm_ms,
            warm_bytes=wanted_options.warm_bytes,
        )
        self._options = options
        self.lifecycle.change_options(options)
        old_quotas = (old_options.quota_bytes, old_options.topic_quota_bytes)
        if old_quotas != (options.quota_bytes, options.topic_quota_bytes):
            self.quota = self._make_quota()
        if isinstance(self._sink, NativeSink):
            self._sink.set_inline_below_us(options.inline_sync_below_us)
        self.admission_queue.wake()
        self._tasks.start(self.lifecycle.free_due_files(), "wal-free")

    # --- topics and shards ---

    def declare_topic(self, topic: TopicIdentity) -> None:
        """Assigns a name to a topic id. Every file that uses the id stores the name."""
        self.state.declare_topic(topic)

    def shard(self, topic_id: int, shard: int = 0) -> Shard:
        return self.state.shard(ShardKey(topic_id, shard))

    def batch(self, shard: Shard, block: bytes, head: BlockHead | None = None) -> AppendBatch:
        """Wraps a block as a batch. Raises InvalidInput or MessageTooLarge if its size is wrong.

        `head`: the decoded head of the block, if the caller has it already.
        """
        rows, size, numbering = head or decode_block_head(block)
        if size != len(block):
            raise errors.InvalidInput(f"block header declares {size} bytes, received {len(block)}")
        allowed = self._rows_bytes_max if rows > 1 else self._row_bytes_max
        if size > allowed:
            raise too_large(rows, size, allowed)
        return new_tuple(AppendBatch, (shard, rows, block, numbering))

    def takes_group(self, size: int, shards: int) -> bool:
        """Whether a group of `size` bytes for so many shards fits one record of every file."""
        options = self._options
        record_bytes_max = options.file_bytes // limits.LOG_FILE_RECORDS_MIN - options.align_bytes
        return size <= self._rows_bytes_max and group_cost_max(size, shards) <= record_bytes_max

    @property
    def row_bytes_max(self) -> int:
        """The largest allowed block of one message."""
        return self._row_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        """The largest allowed block of more than one message."""
        return self._rows_bytes_max

    @property
    def sync_seconds(self) -> float | None:
        """The moving average of sync times; None without the native sink, which measures them."""
        return self._sink.sync_seconds if isinstance(self._sink, NativeSink) else None

    def gaps(self, key: ShardKey) -> list[DeclaredGap]:
        return list(self.state.gaps.get(key, ()))

    # --- append ---

    async def append(self, batches: Sequence[AppendBatch | AppendGroup]) -> list[Result]:
        """Stores the batches and returns a result for each once the sync mode allows the acknowledgement.

        Waits near a quota and while too many bytes are in flight. Raises Refused if nothing was stored, OutcomeUnknown
        if the disk failed in between. An error of a single batch (a wrong sequence number) is its result, not raised.
        """
        size = total_block_bytes(batches)
        pause = self._admit(batches, size)
        if pause:
            metrics.APPENDS_SLOWED.inc()
            await self._clock.sleep(pause)
        # After any wait the quota is checked again: other appends were admitted meanwhile.
        if self.admission_queue or not self.has_room(size):
            await self.admission_queue.wait(lambda: self._can_enter(size))
            self._admit(batches, size)
        elif pause:
            self._admit(batches, size)
        return await self._enqueue(batches, size)

    def _can_enter(self, size: int) -> bool:
        self._check_open()
        return self.has_room(size)

    def submit(self, batches: Sequence[AppendBatch | AppendGroup]) -> Receipt:
        """Like `append`, but returns a receipt at once. Raises InFlightFull instead of waiting."""
        size = total_block_bytes(batches)
        pause = self._admit(batches, size)
        if not self.has_room(size):
            raise errors.InFlightFull(
                f"{self.in_flight_bytes} bytes in flight, not written to disk yet",
                hint="wait for acks before sending more",
            )
        receipt = self._enqueue(batches, size)
        if pause:
            receipt.pause_ms = int(1000 * pause)
        return receipt

    def _enqueue(self, batches: Sequence[AppendBatch | AppendGroup], size: int) -> Receipt:
        self._check_open()
        request = AppendRequest(batches, size)
        self._requests.add(request)
        self._schedule_flush()
        return request

    @property
    def in_flight_bytes(self) -> int:
        return self._requests.queued_bytes + self.appender.in_flight_bytes

    async def wait_for_room(self, size: int) -> None:
        """Waits until `submit` accepts `size` more bytes, in the order of all waiting appends.

        The caller must submit without awaiting in between: the room is not reserved.
        """
        await self.admission_queue.wait(lambda: self._can_enter(size))

    def has_room(self, size: int) -> bool:
        """Whether `submit` would accept `size` more bytes now. A batch larger than the bound enters alone."""
        in_flight = self._requests.queued_bytes + self.appender.in_flight_bytes
        return not in_flight or in_flight + size <= self._options.in_flight_bytes

    def _admit(self, batches: Sequence[AppendBatch | AppendGroup], size: int) -> float:
        """Seconds to wait before this append. Raises Refused at a quota."""
        total_bytes = self.lifecycle.used_bytes + self._requests.queued_bytes
        quota = self.quota
        # Warm files can be freed, so they do not slow appends down. At the quota itself they count: a pin or lease may
        # keep them on disk.
        used = total_bytes - self.lifecycle.warm.bytes if total_bytes + size <= quota.node_bytes else total_bytes
        if used + size <= quota.slow_node_bytes:
            # The common case, far from every quota, costs no call.
            slow_topic_bytes = quota.slow_topic_bytes - size
            # What a topic holds is a part of what the log holds.
            if total_bytes <= slow_topic_bytes:
                return 0.0
            for shard in _shards_of(batches):
                if shard.usage.held_bytes > slow_topic_bytes:
                    break
            else:
                return 0.0
        try:
            return max(
                admit(quota, used, shard.usage.held_bytes, size, shard.topic.name) for shard in _shards_of(batches)
            )
        except errors.Refused as error:
            metrics.APPENDS_REFUSED.labels(error.code).inc()
            raise

    def _check_open(self) -> None:
        if self.stopped:
            raise self.stopped
        if self._closing:
            raise _closed_error()

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Runs one tick: turns everything queued into as few records as possible."""
        self._is_flush_scheduled = False
        if self.stopped or not self._requests.queue:
            return
        # A copy: settled requests leave the queue while their results are assigned.
        requests = list(self._requests.queue)
        if len(requests) == 1:
            batches = requests[0].batches
        else:
            batches = [batch for request in requests for batch in request.batches]
        if tracing.is_on:
            _trace_append(requests, len(batches))
        # One append for all requests of the tick is the group commit: one record, one write, one sync.
        results = self.appender.append(batches, self._tick_time_us())
        is_complete = len(results) == len(batches)
        self._requests.assign_results(requests, results, self.appender.released_lsn, is_complete=is_complete)
        self._submit_writes()
        self.lifecycle.provision()
        # Batches are left over because no file is ready. While one is being prepared they wait; refused are they only
        # after the preparation has failed.
        if self._requests.queue and self.lifecycle.prepare_error and not self.lifecycle.preparing:
            self._refuse_queue()
        if self._waiters:
            self._waiters.notify(self.stopped)

    def _tick_time_us(self) -> int:
        """The wall clock for the records of this tick; logs and counts a large step back (hazard 32)."""
        now_us = self._clock.wall_us()
        if now_us < self._last_tick_us - limits.CLOCK_CLAMP_US:
            metrics.CLOCK_STEPS_BACK.inc()
            _log.warning("the wall clock went back", seconds=(self._last_tick_us - now_us) / 1e6)
        self._last_tick_us = now_us
        return now_us

    def _on_file_ready(self) -> None:
        if self._requests.queue:
            self._schedule_flush()
        self._waiters.notify(self.stopped)

    def _submit_writes(self) -> None:
        """Passes the appender's planned writes to the sink."""
        writes = self.appender.drain_writes()
        if writes:
            # The sink wrote inline: no eventfd will wake the loop for it.
            if self._sink.submit(writes, self.lifecycle.handles):
                self._on_progress()
            metrics.WAL_WRITES.value += len(writes)
            metrics.WAL_BYTES.value += sum([len(write.data) for write in writes])

    # --- completions ---

    def _on_progress(self) -> None:
        progress = self._sink.progress()
        self.appender.progress(progress.written, progress.synced)
        # Acks before anything else: sealing and preparing files may take a while, and producers wait.
        self._release()
        for sealed in self.appender.drain_sealed():
            self.lifecycle.file_sealed(sealed)
        if progress.error and not self.stopped:
            self._handle_sink_error(progress.error)
            self._release()
        if self._waiters:
            self._waiters.notify(self.stopped)
        self.lifecycle.provision()
        if self._requests.queue:
            self._schedule_flush()

    def _release(self) -> None:
        """Sends the acknowledgements of released records and wakes the followers of their shards."""
        self._requests.release(self.appender.released_lsn)
        self.admission_queue.wake()
        advanced, self.appender.advanced_shards = self.appender.advanced_shards, []
        for shard in advanced:
            if shard.on_visible is not None:
                shard.on_visible()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds. Raises LogStopped or LogClosed if the log ends before."""
        if error := self.stopped or self._closed:
            raise error
        await self._waiters.wait_until(condition)

    async def wait_released(self, lsn: int) -> None:
        """Waits until readers may see record `lsn`."""
        await self._wait_until(lambda: self.appender.released_lsn >= lsn)

    # --- failures ---

    def _handle_sink_error(self, error: SinkError) -> None:
        """A failed sync stops the log. A failed write is rolled back: the log goes on in a new file."""
        if error.operation == "sync":
            self._stop(error)
            return
        # Waits for the sink's thread: after this no write is on its way, so the appender's state and the files agree.
        final = self._sink.halt()
        self.appender.progress(final.written, final.synced)
        if final.error is not None and final.error.operation == "sync":
            self._stop(final.error)  # a sync that ran concurrently with the write
            return
        metrics.WAL_WRITE_FAILURES.inc()
        self._has_rolled_back = True
        _log.error("a write to the log failed: rolling back to the last acknowledged record", errno=error.errno)
        self._requests.release(self.appender.released_lsn)  # completed before the error, reported only now
        unfinished = self.appender.roll_back()
        unknown = errors.OutcomeUnknown(
            f"a write to the log failed (errno {error.errno})", hint="retry with the same sequence number"
        )
        self._requests.fail_unreleased(unknown)
        self._requests.fail_begun(unknown)
        # Queued appends fail too: stored now, they would overtake the retry of the failed ones (hazard 37).
        self._requests.fail_queue(
            errors.DiskFull("not stored: an earlier write to the log failed", hint="check the disk; send it again")
        )
        try:
            for sealed in unfinished:
                self.lifecycle.seal_after_failed_write(sealed)
        except OSError as failure:
            self._stop(SinkError(error.ticket, "sync", failure.errno or 0))
            return
        self.appender.mark_files_sealed()
        # The new writer thread has an eventfd of its own.
        if self._sink.fileno() >= 0:
            self._loop.remove_reader(self._sink.fileno())
        self._sink.restart()
        if self._sink.fileno() >= 0:
            self._loop.add_reader(self._sink.fileno(), self._on_progress)

    def _stop(self, error: SinkError) -> None:
        """Stops the log for good after a failed sync: nothing is acknowledged any more (hazard 6).

        The kernel may have dropped the dirty pages, so what is on disk is unknown until recovery reads it.
        """
        self.stopped = errors.LogStopped(
            f"a sync of the log failed (errno {error.errno}): the node stops",
            hint="check the disk, then start again: recovery rewrites and syncs the unsealed part",
        )
        _log.error("a sync of the log failed: the log stops", errno=error.errno)
        # A mark on disk, as far as the disk still takes one: the next start must not trust the page cache, which may
        # hold bytes that never reached the disk (hazard 6).
        with contextlib.suppress(OSError, FileExistsError):
            self._directory.create(log_file.SYNC_FAILED_NAME).close()
            self._directory.sync()
        # Whether an unacknowledged record survives is decided by recovery: "unknown", not "refused".
        unknown = errors.OutcomeUnknown("the log stopped before this append was confirmed", hint=self.stopped.hint)
        self._requests.fail_unreleased(unknown)
        self._requests.fail_queue(self.stopped)
        self.admission_queue.fail(self.stopped)
        self._waiters.notify(self.stopped)
        self.on_stop(self.stopped)

    def _on_task_failed(self, error: BaseException) -> None:
        if isinstance(error, OSError):
            metrics.WAL_MAINTENANCE_FAILURES.inc()
        else:
            self._loop.call_exception_handler({"message": "a background task of the log failed", "exception": error})

    def _refuse_queue(self) -> None:
        """Refuses every append without offsets, because the disk has no room for another file. Clients can retry."""
        error = errors.DiskFull(
            f"disk full: cannot create another log file: {self.lifecycle.prepare_error}",
            hint="free disk space; appends resume by themselves",
        )
        refused_count = self._requests.refuse_queue(error, self.appender.released_lsn)
        metrics.APPENDS_REFUSED.labels(error.code).inc(refused_count)
        self.admission_queue.wake()

    # --- sync and floor ---

    async def sync(self) -> int:
        """Makes everything appended so far durable, in every mode, and returns the LSN reached."""
        self._check_open()
        # Queued appends are included: the caller may have submitted them in this tick.
        self._flush()
        lsn = self.appender.state.lsn
        if self.appender.synced_lsn < lsn:
            self.appender.plan_sync()
            self._submit_writes()
            # A failed write may roll back records below `lsn`: then the new end of the log is enough.
            await self._wait_until(lambda: self.appender.synced_lsn >= min(lsn, self.state.lsn))
        return lsn

    async def _sync_periodically(self) -> None:
        while True:
            await self._clock.sleep(self._options.sync_interval_ms / 1000)
            # After a failed sync the kernel reports the next one as good although it dropped the pages (hazard 6).
            if self.stopped:
                return
            file = self.appender.file
            if file is not None and self.appender.synced_lsn < self.appender.released_lsn:
                # Only the active file: a file is synced when it is sealed, so older ones hold nothing unsynced.
                self._sink.request_sync(self.lifecycle.handles[file.number])
                if self._sink.fileno() < 0:
                    self._on_progress()

    async def advance_floor(self, floors: Mapping[ShardKey, int]) -> None:
        """Declares everything below these offsets durable elsewhere, and frees the files that are no longer needed."""
        self._check_open()
        await self.floors.advance(floors)

    async def checkpoint(self) -> None:
        """Writes a checkpoint now, and frees the files that it allows to free."""
        self._check_open()
        await self.lifecycle.checkpoint()
        await self.lifecycle.free_files()

    async def retire_files(self, retired_below: int | None = None) -> int:
        """Retires every file of the log: what is appended from now on goes to files without old bytes, and the others
        are deleted as soon as nothing needs them, never made into spares. Returns the number below which files are
        retired.

        `retired_below`: of an earlier retirement, which a restart may have cut off; files above it stay as they are.
        For an erasure (docs/adr/0121): power may fail at any step, and the retirement is then repeated.
        """
        self._check_open()
        lifecycle = self.lifecycle
        if retired_below is None:
            # First: a file that is freed from here on does not become a spare.
            retired_below = lifecycle.retired_below = lifecycle.next_number
            while lifecycle.preparing:
                await self._wait_until(lambda: not lifecycle.preparing)
            await lifecycle.zero_unused()
            if self.appender.file is not None and self.appender.file.number < retired_below:
                # As at the end of a run: the next append begins the next file, and until then there is no open one.
                self.appender.close()
                self._submit_writes()
                await self._wait_until(lambda: not self.appender.sealing())
        else:
            lifecycle.retired_below = max(lifecycle.retired_below, retired_below)
        await lifecycle.trim_retired()
        await lifecycle.free_due_files()
        return retired_below

    async def _keep_spares(self) -> None:
        while True:
            await self.lifecycle.make_spares()
            await self._next_seal(self.appender.sealed_count)

    async def _next_seal(self, sealed: int) -> None:
        await self._wait_until(lambda: self.appender.sealed_count != sealed)

    # --- end ---

    async def close(self) -> None:
        """Finishes accepted appends, seals the file, writes a clean checkpoint: the next start has nothing to recover.

        Raises LogStopped if a sync fails meanwhile: then the next start recovers. Resources are released either way.
        """
        if self._closing:
            return
        try:
            if not self.stopped:
                # Accepted appends are finished first. Only then the log refuses new ones, else the last ack could be
                # lost.
                await self._wait_until(lambda: not self._requests)
            self._closing = self.lifecycle.closing = True
            await self._tasks.stop()
            if not self.stopped:
                await self._seal_last_file()
                await self.lifecycle.finish()
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Releases the resources without another write: the directory stays as it is, and the next start recovers.

        For a start that failed. Its background tasks end before the lock is released: one that frees files would change
        the directory under the next process.
        """
        self._closing = self.lifecycle.closing = True
        try:
            await self._tasks.stop()
        finally:
            self._release_resources()

    def _release_resources(self) -> None:
        if self._sink.fileno() >= 0:
            self._loop.remove_reader(self._sink.fileno())
        self._sink.close()
        self.lifecycle.close()
        self._maintenance.close()
        self._reads.close()
        # The lock goes last but for the directory: another process may open the log from here on.
        self._lock.close()
        self._directory.close()
        self._closed = _closed_error()
        self._waiters.notify(self._closed)

    async def _seal_last_file(self) -> None:
        if self.appender.file is not None:
            self.appender.close()
            self._submit_writes()
            await self._wait_until(lambda: not self.appender.sealing())


def _trace_append(requests: list[AppendRequest], batches: int) -> None:
    """Records a span for the tick when its last request is released."""
    start_ns, size_bytes = now_ns(), sum(request.size for request in requests)
    requests[-1].add_done_callback(lambda _: record("append", start_ns, batches=batches, bytes=size_bytes))


def _shards_of(batches: Sequence[AppendBatch | AppendGroup]) -> Iterator[Shard]:
    """The shards that the batches are for."""
    for batch in batches:
        if isinstance(batch, AppendGroup):
            yield from batch.shards
        else:
            yield batch.shard


def _closed_error() -> errors.LogClosed:
    return errors.LogClosed("the log is closed", hint="the broker is shutting down: connect again later")
