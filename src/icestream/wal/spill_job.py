"""Background job: copies messages of stuck topics from the oldest log files to spill files (hazard 8).

The log files can then be freed. Nothing happens while the log has room. Under pressure the job runs at once, and then
every few seconds while the pressure lasts. An error (a read position that is gone, a full disk) costs nothing: the log
still has every message.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import spill_policy
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import FileSummary
from icestream.wal.log_file import FileHeader
from icestream.wal.log_options import LogOptions
from icestream.wal.reader import Reader
from icestream.wal.spill_file import SpillFileWriter

_log = get_logger("wal")


class _CopyRange(NamedTuple):
    """Offsets [start, end) of one shard that are to be copied."""

    key: ShardKey
    start: int
    end: int


class SpillJob:
    """Watches the pressure of one log and spills stuck topics while it lasts."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        offload: Offload,
        tasks: Tasks,
        lifecycle: FileLifecycle,
        reader: Reader,
        options: LogOptions,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._offload = offload
        self._tasks = tasks
        self._lifecycle = lifecycle
        self._reader = reader
        self._file_bytes = options.file_bytes
        self._sealed_ns: dict[int, int] = {}  # by file number: when it was sealed, or the log was opened
        self._opened_ns = clock.monotonic_ns()
        self._is_running = False
        lifecycle.on_sealed = self.start_under_pressure

    def start_under_pressure(self) -> None:
        """Starts the job if the log is under pressure; called at the start and after each sealed file."""
        now_ns = self._clock.monotonic_ns()
        self._sealed_ns = {file.number: self._sealed_ns.get(file.number, now_ns) for file in self._lifecycle.files}
        if not self._is_running and self._is_pressed:
            self._is_running = True
            self._tasks.start(self._run(), "wal-spill")

    @property
    def _is_pressed(self) -> bool:
        """Whether the log needs room: too many held bytes or files, or no room for the next file."""
        lifecycle = self._lifecycle
        held_files = len(lifecycle.files) - len(lifecycle.warm.files)
        return not lifecycle.closing and (
            lifecycle.prepare_error is not None
            or spill_policy.is_pressed(lifecycle.held_bytes, held_files, lifecycle.quota().node_bytes)
        )

    async def _run(self) -> None:
        try:
            while self._is_pressed:
                if not await self.step():
                    await self._clock.sleep(limits.SPILL_LOOK_SECONDS)
        finally:
            self._is_running = False

    async def step(self) -> bool:
        """Copies and frees some files if it pays (spill_policy.py); returns whether it did."""
        try:
            # Floors are not lowered meanwhile: a lowered floor would leave offsets that neither the copy nor the log
            # files keep.
            async with self._lifecycle.spill_lock:
                ends = spill_policy.to_spill(self._lifecycle.files, self._lifecycle.log_floor, self._is_stuck)
                for topic_id, keys in groupby(sorted(ends), key=lambda key: key.topic_id):
                    await self._spill(self._lifecycle.state.topics[topic_id], {key: ends[key] for key in keys})
        except (errors.LogError, OSError) as error:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            _log.warning("cannot spill a stuck topic: copying its messages out of the log failed", reason=str(error))
            return False
        if ends:
            await self._lifecycle.free_due_files()
        return bool(ends)

    def _is_stuck(self, key: ShardKey, file: FileSummary) -> bool:
        """Whether the shard's floor has not moved for long although the file was there all the time."""
        now_ns = self._clock.monotonic_ns()
        floor_moved_ns = self._lifecycle.floor_moved_ns.get(key, self._opened_ns)
        # The later of both: a floor that rests is only a problem since the file with the shard's messages exists.
        since_ns = max(floor_moved_ns, self._sealed_ns.get(file.number, now_ns))
        return now_ns - since_ns >= int(limits.SPILL_STUCK_SECONDS * 1e9)

    # --- one topic ---

    async def _spill(self, topic: TopicIdentity, ends: spill_policy.Ends) -> None:
        """Copies the topic's messages up to `ends` into as many spill files as necessary.

        A small spill file of the topic is merged: its messages go into the first new file, entirely.
        """
        merged = self._last_small_spill(topic.id)
        copy_ranges = [_CopyRange(key, self._lifecycle.log_floor(key), end) for key, end in sorted(ends.items())]
        for copy_range in copy_ranges:
            _log.warning(
                "spilling a stuck topic: copying its messages out of the log", topic=topic.name,
                shard=copy_range.key.shard, start=copy_range.start, end=copy_range.end,
            )  # fmt: skip
        copy_ranges = self._ranges_to_merge(merged) + copy_ranges
        merged_count = len(copy_ranges) - len(ends)
        while copy_ranges:
            spill_file = await self._write(topic, copy_ranges, merged, merged_count)
            if spill_file is not None:
                self._lifecycle.add_spill_file(spill_file, merged)
                metrics.WAL_SPILLED_BYTES.inc(spill_file.size)
            merged, merged_count = None, 0

    def _last_small_spill(self, topic_id: int) -> FileSummary | None:
        """The topic's last spill file if it is small: many small files would cost more than their bytes."""
        topic_files = [file for file in self._lifecycle.spills.files if file.keys[0].topic_id == topic_id]
        return topic_files[-1] if topic_files and topic_files[-1].size < self._file_bytes // 2 else None

    def _ranges_to_merge(self, merged: FileSummary | None) -> list[_CopyRange]:
        shards = self._lifecycle.state.shards
        file_ranges = merged.ranges() if merged is not None else ()
        copy_ranges = [
            _CopyRange(key, max(file_range.first, shards[key].floor), file_range.end) for key, file_range in file_ranges
        ]
        return [copy_range for copy_range in copy_ranges if copy_range.start < copy_range.end]

    async def _write(
        self, topic: TopicIdentity, copy_ranges: list[_CopyRange], replaced: FileSummary | None, required_count: int
    ) -> FileSummary | None:
        """Writes one spill file from the front of `copy_ranges` and removes from the list what it has copied.

        The first `required_count` ranges go in entirely, because `replaced` is removed afterwards; then as many as the
        file has room for. Returns None if there was nothing left to copy.
        """
        replaces = replaced.number if replaced is not None else 0
        number = self._lifecycle.allocate_number()
        header = FileHeader(self._lifecycle.log_id, number, replaces, 0, self._clock.wall_us(), 0)
        writer = await self._offload.run(lambda: SpillFileWriter(self._directory, header, topic))
        try:
            while copy_ranges and (required_count > 0 or writer.size < self._file_bytes):
                rest = await self._copy_record(writer, copy_ranges.pop(0))
                if rest is not None:
                    copy_ranges.insert(0, rest)
                else:
                    required_count -= 1
            if writer.is_empty:
                await self._offload.run(writer.discard)
                return None
            return await self._offload.run(writer.publish)
        # Cancellation included: an unfinished file must not stay until the next start.
        except BaseException:
            writer.discard()
            raise

    async def _copy_record(self, writer: SpillFileWriter, copy_range: _CopyRange) -> _CopyRange | None:
        """Copies one record's worth of the range and returns the rest of it; None if it is complete."""
        result = await self._reader.read(copy_range.key, copy_range.start, limits.READ_BYTES_DEFAULT)
        sections = [section for section in result.sections if section.base_offset < copy_range.end]
        if not sections:
            return None
        await self._offload.run(lambda: writer.add(copy_range.key, sections))
        return copy_range._replace(start=result.next_offset) if result.next_offset < copy_range.end else None
