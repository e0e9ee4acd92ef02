"""The life of log files in the background of appends: prepare the next file, keep spares, checkpoint, free old files.

Decisions run on the event loop's thread; blocking work runs through `Offload`. file_states.py has the state table and
the rule for which files may be freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from icestream import errors, limits
from icestream.model.shard import ShardKey
from icestream.observability import metrics
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import file_states, log_file
from icestream.wal import format as wire
from icestream.wal.admission import Quota
from icestream.wal.appender import Appender, SealedFile
from icestream.wal.ballast import FULL, Ballast
from icestream.wal.checkpoint import (
    Checkpoint,
    KeptCheckpoint,
    encode_checkpoint,
    epoch_slices,
    freeze_shards,
    window_slices,
)
from icestream.wal.checkpoint_writer import CheckpointWriter
from icestream.wal.file_leases import FileLeases
from icestream.wal.file_summary import FileSummary
from icestream.wal.footer import load_index
from icestream.wal.log_options import LogOptions
from icestream.wal.provision import Provisioner
from icestream.wal.read_pins import ReadPins
from icestream.wal.recovery import RecoveredWal
from icestream.wal.spill_log import SpillLog
from icestream.wal.state import Shard
from icestream.wal.warm_files import WarmFiles


class FileLifecycle:
    """The files of one open log: which exist, which are needed, which get records next."""

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        offload: Offload,
        options: LogOptions,
        appender: Appender,
        recovered: RecoveredWal,
        tasks: Tasks,
        on_ready: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._offload = offload
        self._options = options
        self._appender = appender
        self.state = appender.state
        self.log_id = recovered.log_id
        self._tasks = tasks
        self._on_ready = on_ready
        self._provisioner = Provisioner(
            directory, clock, recovered.log_id, options.file_bytes, recovered.spares, options.spare_files
        )
        self._next_number = recovered.next_number
        self._required = recovered.required  # the file that the next start must find (log_file.py: the current file)
        self._leftovers = recovered.leftovers  # files without records, which keep their names while they are required
        # Two are kept, so that a torn or unreadable newest checkpoint costs a longer replay and no data (ADR 7).
        self._checkpoint_writer = CheckpointWriter(directory, self._provisioner, recovered.checkpoints)
        self._bytes_since_checkpoint = 0
        self._checkpoint_lock = asyncio.Lock()  # serialised: each stores the floors at the time it starts
        self._prepare_retry_ns = 0
        self._is_freeing_scheduled = False
        self.ballast = Ballast(directory, 0, options.file_bytes)
        self.pins = ReadPins(clock)
        self.leases = FileLeases(clock)
        self.warm = WarmFiles(clock)
        self.quota: Callable[[], Quota] = lambda: Quota(2**63, 2**63)
        self.files: list[FileSummary] = recovered.files
        self.spills = SpillLog(recovered.spills)
        self.retired_below = 0  # files with lower numbers are freed as soon as possible, and never become spares
        # Held while messages are copied to the spill log: a floor lowered meanwhile would lie below the copied range,
        # and the offsets between them would be hidden.
        self.spill_lock = asyncio.Lock()
        self.floor_moved_ns: dict[ShardKey, int] = {}  # when a floor moved last, on the monotonic clock
        self.sealed_bytes = sum(file.size for file in self.files)
        self.handles: dict[int, File] = {}
        self.preparing = False
        self.prepare_error: OSError | None = None
        self.closing = False
        self.on_sealed: Callable[[], None] = lambda: None
        metrics.WAL_FILES.set(len(self.files))
        self._charge_topics()
        self._refresh_warm()

    def change_options(self, options: LogOptions) -> None:
        """Applies options that may change while the log runs (write_ahead_log.py says which)."""
        self._options = options

    def _charge_topics(self) -> None:
        """Counts what the files of an earlier run hold against the quotas of their topics."""
        for file in self.files:
            for key, file_range in file.ranges():
                shard = self.state.shard(key)
                if file_range.end > self.log_floor(key):
                    shard.usage.held_bytes += file_range.own_bytes
        for file in self.spills.files:
            for key, file_range in file.ranges():
                shard = self.state.shard(key)
                if file_range.end > shard.floor:
                    shard.usage.held_bytes += file_range.own_bytes

    def log_floor(self, key: ShardKey) -> int:
        """The offset below which log files need not keep this shard: durable elsewhere, or in the spill log."""
        return max(self.state.shards[key].floor, self.spills.end(key))

    @property
    def checkpoints(self) -> Sequence[KeptCheckpoint]:
        """The checkpoints on disk, newest first."""
        return self._checkpoint_writer.kept

    @property
    def used_bytes(self) -> int:
        """Bytes of all files with records: sealed, spilled and active. Spares and the ballast are not counted."""
        file = self._appender.file
        active_bytes = self._appender.sealing_bytes + (file.position if file else 0)
        return self.sealed_bytes + self.spills.bytes + active_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that cannot be freed at once, compared with the quota: without the warm files."""
        return self.used_bytes - self.warm.bytes

    @property
    def next_number(self) -> int:
        """The number of the next file; no file has it yet."""
        return self._next_number

    def numbers(self) -> set[int]:
        """The numbers of all files that hold records."""
        sealed = {file.number for file in self.files} | self.spills.numbers()
        return sealed | {number for number, _ in self._appender.open_files()}

    def name_of(self, number: int) -> str:
        """The name of file `number`: log files and spill files share one counter."""
        return (log_file.spill_name if number in self.spills.numbers() else log_file.log_name)(number)

    # --- the next file ---

    def provision(self) -> None:
        """Starts preparing the next file if there is none; after a failure at most once a second."""
        if (
            self._appender.next_file is None
            and not self.preparing
            and not self.closing
            and self._clock.monotonic_ns() >= self._prepare_retry_ns
        ):
            self.preparing = True
            self._tasks.start(self.prepare_next(), "wal-prepare")

    async def prepare_next(self) -> None:
        """Prepares the next file and hands it to the appender. A failure is left in `prepare_error`."""
        self.preparing = True
        # The number is consumed even if the preparation fails: a half-made file may stay behind under it (hazard 5).
        number, synced = self.allocate_number(), self._appender.synced_lsn
        current = self._appender.file.number if self._appender.file is not None else number
        try:
            file, capacity = await self._offload.run(lambda: self._prepare(number, synced, current))
        except OSError as error:
            self.prepare_error = error
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            self._prepare_retry_ns = self._clock.monotonic_ns() + limits.PREPARE_RETRY_NS
            # From now on the free space is for the pipeline, whose commits are what frees log files.
            if error.errno in FULL:
                await self._offload.run(lambda: self.ballast.release("no room for another log file"))
            # Warm files are a cache; they are given up when the log needs their space.
            if self.warm.files and not self.closing:
                self._tasks.start(self.free_due_files(), "wal-free")
        else:
            self.prepare_error = None
            self.handles[number] = file
            self._appender.file_ready(number, capacity)
            self._required = max(self._required, current)
            # The header of the new file names the current file, so `_required` has moved and older empty files may go.
            await self._remove_leftovers()
        finally:
            self.preparing = False
        self._on_ready()

    async def update_ballast(self, *, is_start: bool = False) -> None:
        """Releases the ballast if the disk is nearly full, or reserves it again if there is room."""
        update = self.ballast.restore if is_start else self.ballast.update
        if is_start or self.ballast.size:
            await self._offload.run(lambda: update(self._provisioner))

    def _prepare(self, number: int, synced: int, current: int) -> tuple[File, int]:
        self.ballast.require_held(self._provisioner)
        self._provisioner.keep_reserve()
        return self._provisioner.prepare(number, synced, current)

    async def _remove_leftovers(self) -> None:
        """Removes the files without records that no start requires any more (log_file.py: the current file)."""
        obsolete = [number for number in self._leftovers if number < self._required]
        if obsolete:
            self._leftovers = [number for number in self._leftovers if number >= self._required]
            await self._remove([log_file.log_name(number) for number in obsolete])

    def allocate_number(self) -> int:
        """Returns the next file number, which is never used twice."""
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    async def make_spares(self) -> None:
        """Zeroes missing spare files, a slice at a time at a bounded rate, so that appends stay fast (hazard 36)."""
        with contextlib.suppress(OSError):
            while self._provisioner.needs_spare and not self.prepare_error:
                await self._zero_slowly(self._provisioner.zero_spare(self.allocate_number()))

    async def _zero_slowly(self, slices: Iterator[None]) -> None:
        while await self._offload.run(lambda: next(slices, False) is None):
            await self._clock.sleep(limits.ZERO_SLICE_BYTES / limits.ZERO_BYTES_PER_SECOND)

    # --- sealed files ---

    def file_sealed(self, sealed: SealedFile) -> None:
        """Takes over a file whose seal is on disk; starts a checkpoint if one is due."""
        assert sealed.index is not None
        # Readers open a file by its name for each read; the handle was for writing.
        self.handles.pop(sealed.seal.number).close()
        self._required = max(self._required, sealed.seal.next_number)
        self._add(FileSummary.of(sealed.seal, sealed.seal.end_position + sealed.seal.footer_bytes, sealed.index))
        self._refresh_warm()
        self.on_sealed()
        # One checkpoint at a time: the next sealed file looks again.
        if (self._is_checkpoint_due or self._due_count) and not self.closing and not self._checkpoint_lock.locked():
            self._tasks.start(self._checkpoint_and_free(), "wal-checkpoint")

    @property
    def _is_checkpoint_due(self) -> bool:
        """By bytes and by records, because a start replays every record behind the checkpoint."""
        checkpoints = self._checkpoint_writer.kept
        records = self._appender.synced_lsn - (checkpoints[0].lsn if checkpoints else 0)
        return (
            self._bytes_since_checkpoint >= self._options.checkpoint_every_bytes
            or records >= limits.CHECKPOINT_EVERY_RECORDS
        )

    def seal_after_failed_write(self, sealed: SealedFile) -> None:
        """Seals a file at its last valid record. Blocks the loop: no append may happen before that (hazard 16)."""
        file = self.handles.pop(sealed.seal.number)
        # A seal proves that every record before it is on disk, so those are synced first, in every mode.
        file.sync()
        file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(sealed.seal))
        file.sync()
        self._required = max(self._required, sealed.seal.next_number)
        if sealed.seal.last_lsn >= sealed.seal.first_lsn:
            self._add(FileSummary.of(sealed.seal, sealed.seal.end_position, load_index(file, sealed.seal)))
            file.close()
            return
        with contextlib.suppress(OSError):
            file.truncate(wire.RECORDS_START)  # no record in it is valid
        file.close()
        # Not removed at once: the header of the next file names this one as current, so a start would take it for lost.
        self._leftovers.append(sealed.seal.number)  # the prepared file after it may require it

    def _add(self, summary: FileSummary) -> None:
        self.files.append(summary)
        self.sealed_bytes += summary.size
        self._bytes_since_checkpoint += summary.size
        for key, file_range in summary.ranges():
            shard = self.state.shards[key]
            # Its floor passed it while the file was being written: those bytes are in a table and no longer count
            # (hazard 8).
            if file_range.end <= shard.floor:
                shard.usage.held_bytes -= file_range.own_bytes
        metrics.WAL_FILES.set(len(self.files))

    # --- checkpoints and freeing ---

    async def _checkpoint_and_free(self) -> None:
        if self._is_checkpoint_due:
            await self.checkpoint()
        await self.free_due_files()

    async def checkpoint_first_file(self) -> None:
        """Writes a checkpoint that names the first file of this run, so that the next start notices if it is missing.

        Does nothing while there is no file (full disk).
        """
        if self._appender.current_number:
            await self.checkpoint()

    async def checkpoint(self, *, clean: bool = False) -> bool:
        """Writes the state at the synced end of the log; returns whether that succeeded.

        A failure costs only time at the next start: the older checkpoints remain valid.
        """
        async with self._checkpoint_lock:
            return await self._checkpoint(clean=clean)

    async def _checkpoint(self, *, clean: bool) -> bool:
        lsn = self._appender.synced_lsn
        # Here and not by a timer: producers that are forgotten in memory must be forgotten on disk at the same moment.
        self.state.producers.expire(self._clock.wall_us() - limits.PRODUCER_AGE_SECONDS_DEFAULT * 1_000_000)
        current = self._file_to_name(clean=clean)
        checkpoint = Checkpoint(lsn, self.log_id, self._next_number, clean, self.state, current)
        # Taken with the LSN and before the first await. A floor that moves during the encoding is not in the
        # checkpoint, and no file may be freed because of it.
        floors = {key: shard.floor for key, shard in self.state.shards.items()}
        try:
            data = await self._encode_checkpoint(checkpoint)
            await self._offload.run(lambda: self._checkpoint_writer.write(lsn, floors, current, data))
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            return False
        self._bytes_since_checkpoint = 0
        self._required = max(self._required, current)
        return True

    def _file_to_name(self, *, clean: bool) -> int:
        """The number of the file that a checkpoint names as the current one, 0 for none (checkpoint.py: CURRENT).

        While no file is ready, a file that is being sealed may hold records beyond the checkpoint, and the header of a
        leftover may name a file that is freed after this checkpoint.
        """
        numbers = [*self.handles, *self._leftovers]
        if clean:  # the file that was prepared for the next record is removed after this, unless a start requires it
            return max((number for number in numbers if number <= self._required), default=0)
        return self._appender.current_number or max(numbers, default=0)

    async def _encode_checkpoint(self, checkpoint: Checkpoint) -> bytes:
        # The shards are encoded at once, as they are at the LSN. The producers may be many, so they are encoded in
        # slices, with an iteration of the loop after each.
        shards = freeze_shards(self.state, clean=checkpoint.clean)
        windows = await _join_slices(window_slices(self.state, checkpoint.lsn))
        epochs = await _join_slices(epoch_slices(self.state))
        return encode_checkpoint(checkpoint, shards, windows, epochs, self._clock.wall_us())

    async def encode_present(self) -> tuple[int, bytes]:
        """The LSN of the synced end, and the state there as the bytes of a checkpoint; nothing is written."""
        # Behind the lock: only one encoding at a time may ask the producers for their windows at its LSN.
        async with self._checkpoint_lock:
            lsn = self._appender.synced_lsn
            checkpoint = Checkpoint(lsn, self.log_id, self._next_number, False, self.state, 0)
            return lsn, await self._encode_checkpoint(checkpoint)

    def move_floor(self, shard: Shard, offset: int) -> None:
        """Raises a shard's floor and stops counting the bytes below it against its topic's quota.

        That holds also while a file stays on disk because another topic needs it (hazard 8). Never lowers a floor.
        """
        log_floor = self.log_floor(shard.key)
        for file in self.files:
            file_range = None if file.was_passed else file.find(shard.key)
            if file_range is not None and file_range.first >= offset:
                break
            if file_range is not None and log_floor < file_range.end <= offset:
                shard.usage.held_bytes -= file_range.own_bytes
        for _, spilled_range in self.spills.ranges_of(shard.key):
            if shard.floor < spilled_range.end <= offset:
                shard.usage.held_bytes -= spilled_range.own_bytes
        if offset > shard.floor:
            shard.floor = offset
            self.floor_moved_ns[shard.key] = self._clock.monotonic_ns()

    def add_spill_file(self, spill_file: FileSummary, replaced: FileSummary | None) -> None:
        """Registers a durable spill file: from now on the log need not keep what it contains.

        `replaced`: an older spill file whose messages the new one contains too.
        """
        for key, spilled_range in spill_file.ranges():
            shard, log_floor = self.state.shards[key], self.log_floor(key)
            log_ranges = (file.find(key) for file in self.files)
            freed_bytes = sum(
                log_range.own_bytes
                for log_range in log_ranges
                if log_range is not None and log_floor < log_range.end <= spilled_range.end
            )
            replaced_range = replaced.find(key) if replaced is not None else None
            if replaced_range is not None and replaced_range.end > shard.floor:
                freed_bytes += replaced_range.own_bytes
            shard.usage.held_bytes += (spilled_range.own_bytes if spilled_range.end > shard.floor else 0) - freed_bytes
        self.spills.add(spill_file, replaced)
        self._refresh_warm()

    async def free_due_files(self) -> None:
        """Frees the files that are due after floors have moved, and schedules the next attempt.

        Writes checkpoints with the new floors first if freeing requires it: at a quota no other event would ever write
        one. What a pin, a lease or a disk error keeps from being freed now is tried again later for the same reason.
        """
        self._refresh_warm()
        # As many checkpoints as are kept: a file is freed only when each of them contains the floors that allow it.
        for _ in range(limits.CHECKPOINTS_KEPT):
            if len(self._freeable()[: self._due_count]) < self._due_count or self._spills_need_checkpoint:
                await self.checkpoint()
        await self.free_files()
        await self.free_spills()
        await self.update_ballast()
        self.schedule_freeing()

    async def floors_lowered(self, keys: Iterable[ShardKey]) -> None:
        """Stores lowered floors in every kept checkpoint, so that no later start frees what lies above (hazard 4)."""
        self.floor_moved_ns.update(dict.fromkeys(keys, self._clock.monotonic_ns()))
        for file in self.files:
            file.reset_passed()
        self._refresh_warm()
        # All kept checkpoints, because a start may have to use any of them. One with the old, higher floor would let it
        # free messages that the table no longer has.
        for _ in range(limits.CHECKPOINTS_KEPT):
            await self.checkpoint()

    def schedule_freeing(self) -> None:
        """Schedules `free_due_files` for when the oldest warm file is due; does nothing without warm files."""
        if self.warm.files and not self._is_freeing_scheduled and not self.closing:
            self._is_freeing_scheduled = True
            self._tasks.start(self._free_later(), "wal-free-later")

    def _refresh_warm(self) -> None:
        self.warm.refresh(self.files, self.log_floor)

    @property
    def _due_count(self) -> int:
        """How many warm files are to be freed now, from the oldest on."""
        # The disk has no room for the next log file: the cache goes entirely.
        if self.prepare_error is not None:
            return len(self.warm.files)
        # Freed before producers are slowed down: a cache must never cost them throughput.
        needed_bytes = self.used_bytes + self._options.file_bytes - self.quota().slow_node_bytes
        due = self.warm.due_count(self._options.warm_ms, self._options.warm_bytes, needed_bytes)
        retired = sum(1 for file in self.warm.files if file.number < self.retired_below)
        return max(due, retired)  # warm files rise by their numbers

    async def _free_later(self) -> None:
        # Another task may have freed them all before the first step of this one.
        if self.warm.files:
            is_overdue = self._due_count > 0  # held by a pin or lease, or the disk failed: wait until pins have expired
            await self._clock.sleep(
                limits.PIN_SECONDS_MAX if is_overdue else self.warm.seconds_until_due(self._options.warm_ms)
            )
        self._is_freeing_scheduled = False
        await self.free_due_files()

    def _freeable(self) -> list[FileSummary]:
        checkpoints = self._checkpoint_writer.kept
        if len(checkpoints) < limits.CHECKPOINTS_KEPT:
            return []
        covered = min(checkpoint.lsn for checkpoint in checkpoints)
        free = file_states.freeable(
            self.warm.files, covered, lambda key: max(self._checkpointed_floor(key), self.spills.end(key))
        )
        # A file that a checkpoint names, or the copy of it, stays until both checkpoints name a later file or none:
        # without it the next start would report a missing file (ADR 41). The seal of the file itself, which names the
        # next one, is no reason to free it: it goes with the file, and the first record of the next may never be
        # synced.
        first_needed = min(
            (checkpoint.current for checkpoint in checkpoints if checkpoint.current), default=self._next_number
        )
        return list(itertools.takewhile(lambda file: file.number < first_needed, free))

    def _checkpointed_floor(self, key: ShardKey) -> int:
        """The floor that every kept checkpoint contains: losing the newest must not make data missing (hazard 4)."""
        checkpoints = self._checkpoint_writer.kept
        if len(checkpoints) < limits.CHECKPOINTS_KEPT:
            return 0
        return min(checkpoint.floors.get(key, 0) for checkpoint in checkpoints)

    @property
    def _spills_need_checkpoint(self) -> bool:
        """Whether spill files could be freed once checkpoints contain the present floors."""
        shards = self.state.shards
        passed = self.spills.passed(lambda key: shards[key].floor)
        return len(self.spills.passed(self._checkpointed_floor)) < len(passed)

    async def free_spills(self) -> None:
        """Removes the spill files that lie below all floors and that no lease or pin holds."""
        shards = self.state.shards
        # The lower of both: the floor in memory may have been lowered since the checkpoints.
        passed = self.spills.passed(lambda key: min(self._checkpointed_floor(key), shards[key].floor))
        free = [file for file in passed if self.leases.unleased_prefix([file]) and self.pins.can_free(file.number)]
        if free:
            self.spills.remove(free)
            await self._remove([log_file.spill_name(file.number) for file in free])

    async def _remove(self, names: list[str]) -> None:
        def remove() -> None:
            for name in names:
                self._directory.remove(name)
            self._directory.sync()

        try:
            await self._offload.run(remove)
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()

    async def free_files(self) -> None:
        """Frees the oldest files that no shard, checkpoint or reader needs, and that are not kept warm."""
        self._refresh_warm()
        free = self.pins.unpinned_prefix(self.leases.unleased_prefix(self._freeable()[: self._due_count]))
        if not free:
            return
        # Out of the list before the disk is touched: a read that starts now no longer finds the file, and one that
        # began before checks its pin (hazard 15).
        freed_numbers = {file.number for file in free}
        self.files = [file for file in self.files if file.number not in freed_numbers]
        self.sealed_bytes -= sum(file.size for file in free)
        self._refresh_warm()
        metrics.WAL_FILES.set(len(self.files))
        names = [log_file.log_name(file.number) for file in free]
        await self._recycle(names)

    async def _recycle(self, names: list[str]) -> None:
        """Turns files into spares. After a disk error they stay; the next start sees them again and frees them."""
        try:
            await self._offload.run(lambda: self._provisioner.recycle(names, self.retired_below))
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()

    # --- retirement ---

    async def zero_unused(self) -> None:
        """Deletes spares, and zeroes the prepared file: their bytes may be those of former lives. Appends that need the
        prepared file wait. No file is being prepared when this is called. Raises StorageUnavailable after a disk
        error."""
        unused = self._appender.next_file
        # Zeroed and not deleted: a checkpoint may name it as the file that the next start must find (log_file.py).
        self.preparing, self._appender.next_file = True, None
        try:
            await self._offload.run(self._provisioner.drop_spares)
            if unused is not None:
                file = self.handles[unused.number]
                await self._offload.run(lambda: _zero_records(file))
        except OSError as error:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            raise errors.StorageUnavailable(f"a log file cannot be zeroed: {error}", hint="look at the disk") from error
        finally:
            self.preparing, self._appender.next_file = False, unused
            self._on_ready()

    async def trim_retired(self) -> None:
        """Cuts retired files that are still needed behind their footers, where former lives left bytes."""
        retired = [file for file in self.files if file.number < self.retired_below]

        def trim() -> None:
            for summary in retired:
                with contextlib.suppress(FileNotFoundError):  # freed meanwhile
                    file = self._directory.open(log_file.log_name(summary.number))
                    try:
                        if file.size() > summary.size:
                            file.truncate(summary.size)
                            file.sync()
                    finally:
                        file.close()

        await self._offload.run(trim)

    def files_below(self, ends: Mapping[ShardKey, int]) -> list[int]:
        """The numbers of files that have records of these shards below their ends."""
        closed = [
            file.number
            for file in (*self.files, *self.spills.files, *self.spills.replaced)
            for key, end in ends.items()
            if (file_range := file.find(key)) is not None and file_range.first < end
        ]
        open_ = [
            number
            for number, index in self._appender.open_files()
            for key, end in ends.items()
            if key in index.shards and index.shards[key].first_offset < end
        ]
        return sorted({*closed, *open_})

    def topics_that_need(self, number: int) -> list[str]:
        """The names of topics above whose floors a file has records."""
        needed = [
            self.state.shard(key).topic.name
            for file in self.files
            if file.number == number
            for key, file_range in file.ranges()
            if file_range.end > self.log_floor(key)
        ]
        return sorted(set(needed))

    # --- end ---

    async def finish(self) -> None:
        """After the last file is sealed: releases unused space and writes the clean checkpoint."""
        try:
            await self._offload.run(self._trim_last)
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
        # After trimming: a clean checkpoint says that every file is complete, so the next start does not scan them.
        is_written = await self.checkpoint(clean=True)
        unused = self._appender.next_file
        if unused is not None:
            self.handles.pop(unused.number).close()
            # A file that a start requires keeps its name although it has no record. Without the checkpoint it may be
            # the only one that names the file before it.
            if unused.number > self._required and is_written:
                await self._recycle([log_file.log_name(unused.number)])

    def _trim_last(self) -> None:
        """Truncates the last file behind its footer: it was sealed before it was full."""
        if not self.files:
            return
        last = self.files[-1]
        file = self._directory.open(log_file.log_name(last.number))
        try:
            if file.size() > last.size:
                file.truncate(last.size)
                file.sync()
        finally:
            file.close()

    def close(self) -> None:
        for file in self.handles.values():
            file.close()
        self.handles.clear()


def _zero_records(file: File) -> None:
    """Zeroes a file behind its first page, which says whose file it is."""
    zeros, end = bytes(limits.ZERO_SLICE_BYTES), file.size()
    for position in range(wire.RECORDS_START, end, len(zeros)):
        file.write_at(position, zeros[: end - position])
    file.sync()


async def _join_slices(slices: Iterator[bytes]) -> bytes:
    """Joins the slices, with one iteration of the event loop after each."""
    parts: list[bytes] = []
    for part in slices:
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)
