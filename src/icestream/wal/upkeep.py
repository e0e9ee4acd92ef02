"""The log's files beside the path of a message: the next one ready, spares zeroed, sealed ones counted, checkpoints,
old ones freed. Decisions are on the loop's thread; what blocks runs off it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from icestream import limits
from icestream.model.shard import ShardKey
from icestream.observability import metrics
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory, File
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import format as wire
from icestream.wal import lifecycle, log_file
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
from icestream.wal.checkpoint_files import CheckpointFiles
from icestream.wal.footer import load_index
from icestream.wal.leases import Leases
from icestream.wal.options import LogOptions
from icestream.wal.pins import Pins
from icestream.wal.provision import Provisioner
from icestream.wal.recovery import Recovered
from icestream.wal.spills import Spills
from icestream.wal.state import Shard
from icestream.wal.summary import FileSummary
from icestream.wal.warm import WarmFiles


class Upkeep:
    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        offload: Offload,
        options: LogOptions,
        appender: Appender,
        recovered: Recovered,
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
        self._checkpoint_files = CheckpointFiles(directory, self._provisioner, recovered.checkpoints)
        self._bytes_since_checkpoint = 0
        self._checkpointing = asyncio.Lock()  # one after the other: each writes down the floors of its moment
        self._prepare_again_ns = 0
        self._frees_later = False
        self.ballast = Ballast(directory, 0, options.file_bytes)
        self.pins = Pins(clock)
        self.leases = Leases(clock)
        self.warm = WarmFiles(clock)
        self.quota: Callable[[], Quota] = lambda: Quota(2**63, 2**63)
        self.files: list[FileSummary] = recovered.files
        self.spills = Spills(recovered.spills)
        self.copying = (
            asyncio.Lock()
        )  # no floor goes down under a copy of what lies above it, which would hide the rest
        self.moved_ns: dict[ShardKey, int] = {}  # when a floor moved last
        self.sealed_bytes = sum(file.size for file in self.files)
        self.handles: dict[int, File] = {}
        self.preparing = False
        self.prepare_error: OSError | None = None
        self.closing = False
        self.on_sealed: Callable[[], None] = lambda: None
        metrics.WAL_FILES.set(len(self.files))
        self._charge()
        self._look()

    def _charge(self) -> None:
        for file in self.files:
            for key, held in file.ranges():
                shard = self.state.shard(key)
                if held.end > self.log_floor(key):
                    shard.usage.held_bytes += held.own_bytes
        for file in self.spills.files:
            for key, held in file.ranges():
                shard = self.state.shard(key)
                if held.end > shard.floor:
                    shard.usage.held_bytes += held.own_bytes

    def log_floor(self, key: ShardKey) -> int:
        """The log need not hold what lies below: it is durable elsewhere, or in the spill log."""
        return max(self.state.shards[key].floor, self.spills.end(key))

    @property
    def checkpoints(self) -> Sequence[KeptCheckpoint]:
        """Those on disk, the newest first."""
        return self._checkpoint_files.kept

    @property
    def used_bytes(self) -> int:
        file = self._appender.file
        active_bytes = self._appender.sealing_bytes + (file.position if file else 0)
        return self.sealed_bytes + self.spills.bytes + active_bytes

    @property
    def held_bytes(self) -> int:
        """What cannot go at once. The quota is measured by this, while there is room for the rest too."""
        return self.used_bytes - self.warm.bytes

    @property
    def next_number(self) -> int:
        """No file has this number yet."""
        return self._next_number

    def numbers(self) -> set[int]:
        """Of every file that holds records."""
        sealed = {file.number for file in self.files} | self.spills.numbers()
        return sealed | {number for number, _ in self._appender.open_files()}

    def name_of(self, number: int) -> str:
        return (log_file.spill_name if number in self.spills.numbers() else log_file.log_name)(number)

    # --- the next file ---

    def provision(self) -> None:
        """Keeps the next file ready; after a failure not more often than once a second."""
        if (
            self._appender.next_file is None
            and not self.preparing
            and not self.closing
            and self._clock.monotonic_ns() >= self._prepare_again_ns
        ):
            self.preparing = True
            self._tasks.start(self.prepare_next(), "wal-prepare")

    async def prepare_next(self) -> None:
        self.preparing = True
        number, synced = self.take_number(), self._appender.synced_lsn
        current = self._appender.file.number if self._appender.file is not None else number
        try:
            file, capacity = await self._offload.run(lambda: self._prepare(number, synced, current))
        except OSError as error:
            self.prepare_error = error
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            self._prepare_again_ns = self._clock.monotonic_ns() + limits.PREPARE_RETRY_NS
            if error.errno in FULL:
                await self._offload.run(lambda: self.ballast.give("there is no room for another log file"))
            if self.warm.files and not self.closing:
                self._tasks.start(self.floors_moved(), "wal-free")
        else:
            self.prepare_error = None
            self.handles[number] = file
            self._appender.file_ready(number, capacity)
            self._required = max(self._required, current)
            await self._remove_leftovers()
        finally:
            self.preparing = False
        self._on_ready()

    async def look_at_ballast(self, *, is_start: bool = False) -> None:
        """Whether the room for draining must be given, or can be had again. It costs nothing where there is none."""
        look = self.ballast.found if is_start else self.ballast.look
        if is_start or self.ballast.size:
            await self._offload.run(lambda: look(self._provisioner))

    def _prepare(self, number: int, synced: int, current: int) -> tuple[File, int]:
        self.ballast.keep(self._provisioner)
        self._provisioner.keep_reserve()
        return self._provisioner.prepare(number, synced, current)

    async def _remove_leftovers(self) -> None:
        """Removes the files without records that no start requires any more (log_file.py: the current file)."""
        passed = [number for number in self._leftovers if number < self._required]
        if passed:
            self._leftovers = [number for number in self._leftovers if number >= self._required]
            await self._remove([log_file.log_name(number) for number in passed])

    def take_number(self) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    async def make_spares(self) -> None:
        """Zeroes the spare files that are missing, a slice at a time and not too fast (hazard 36)."""
        with contextlib.suppress(OSError):
            while self._provisioner.wants_spare and not self.prepare_error:
                await self._zero(self._provisioner.zero_spare(self.take_number()))

    async def _zero(self, slices: Iterator[None]) -> None:
        while await self._offload.run(lambda: next(slices, False) is None):
            await self._clock.sleep(limits.ZERO_SLICE_BYTES / limits.ZERO_BYTES_PER_SECOND)

    # --- sealed files ---

    def file_sealed(self, sealed: SealedFile) -> None:
        assert sealed.index is not None
        self.handles.pop(sealed.seal.number).close()
        self._required = max(self._required, sealed.seal.next_number)
        self._add(FileSummary.of(sealed.seal, sealed.seal.end_position + sealed.seal.footer_bytes, sealed.index))
        self._look()
        self.on_sealed()
        if (self._is_checkpoint_due or self._due) and not self.closing and not self._checkpointing.locked():
            self._tasks.start(self._checkpoint_and_free(), "wal-checkpoint")

    @property
    def _is_checkpoint_due(self) -> bool:
        """By bytes, and by records: a start goes through each of those behind the checkpoint."""
        records = self._appender.synced_lsn - (self._checkpoint_files.kept[0].lsn if self._checkpoint_files.kept else 0)
        return (
            self._bytes_since_checkpoint >= self._options.checkpoint_every_bytes
            or records >= limits.CHECKPOINT_EVERY_RECORDS
        )

    def end_file(self, sealed: SealedFile) -> None:
        """Seals a file at the last record that counts, here and now: nothing else happens before it is done (16)."""
        file = self.handles.pop(sealed.seal.number)
        file.sync()  # a seal says that everything before it is on disk: so that comes first, in every mode
        file.write_at(log_file.SEAL_POSITION, log_file.encode_seal(sealed.seal))
        file.sync()
        self._required = max(self._required, sealed.seal.next_number)
        if sealed.seal.last_lsn >= sealed.seal.first_lsn:
            self._add(FileSummary.of(sealed.seal, sealed.seal.end_position, load_index(file, sealed.seal)))
            file.close()
            return
        with contextlib.suppress(OSError):
            file.truncate(wire.RECORDS_START)  # no record in it counts
        file.close()
        self._leftovers.append(sealed.seal.number)  # the prepared file behind it may require it

    def _add(self, summary: FileSummary) -> None:
        self.files.append(summary)
        self.sealed_bytes += summary.size
        self._bytes_since_checkpoint += summary.size
        for key, held in summary.ranges():
            shard = self.state.shards[key]
            if held.end <= shard.floor:
                shard.usage.held_bytes -= held.own_bytes
        metrics.WAL_FILES.set(len(self.files))

    # --- checkpoints, and what they free ---

    async def _checkpoint_and_free(self) -> None:
        if self._is_checkpoint_due:
            await self.checkpoint()
        await self.floors_moved()

    async def name_first_file(self) -> None:
        """Writes a checkpoint that names the first file of this life, so that the next start misses it when it is
        gone. Without a file there is nothing to name yet."""
        if self._appender.current_number:
            await self.checkpoint()

    async def checkpoint(self, *, clean: bool = False) -> bool:
        """Writes what the log knows at its synced end. A failure costs nothing but time: the older ones still count."""
        async with self._checkpointing:
            return await self._checkpoint(clean=clean)

    async def _checkpoint(self, *, clean: bool) -> bool:
        lsn = self._appender.synced_lsn
        self.state.producers.expire(self._clock.wall_us() - limits.PRODUCER_AGE_SECONDS_DEFAULT * 1_000_000)
        current = 0 if clean else self._appender.current_number
        picture = Checkpoint(lsn, self.log_id, self._next_number, clean, self.state, current)
        floors = {key: shard.floor for key, shard in self.state.shards.items()}
        try:
            data = await self._encode_checkpoint(picture)
            await self._offload.run(lambda: self._checkpoint_files.write(lsn, floors, data))
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            return False
        self._bytes_since_checkpoint = 0
        self._required = max(self._required, current)
        return True

    async def _encode_checkpoint(self, picture: Checkpoint) -> bytes:
        """The shards at once, as they are at the LSN; then the producers, which may be many, in slices."""
        shards = freeze_shards(self.state, clean=picture.clean)
        windows = await _in_slices(window_slices(self.state, picture.lsn))
        epochs = await _in_slices(epoch_slices(self.state))
        return encode_checkpoint(picture, shards, windows, epochs, self._clock.wall_us())

    def move_floor(self, shard: Shard, offset: int) -> None:
        """What lies below a floor does not count against its topic, also while another topic holds the file (8)."""
        log_floor = self.log_floor(shard.key)
        for file in self.files:
            held = None if file.was_passed else file.find(shard.key)
            if held is not None and held.first >= offset:
                break
            if held is not None and log_floor < held.end <= offset:
                shard.usage.held_bytes -= held.own_bytes
        for _, copied in self.spills.of(shard.key):
            if shard.floor < copied.end <= offset:
                shard.usage.held_bytes -= copied.own_bytes
        if offset > shard.floor:
            shard.floor = offset
            self.moved_ns[shard.key] = self._clock.monotonic_ns()

    def spilled(self, made: FileSummary, instead_of: FileSummary | None) -> None:
        """A spill file is there, durably: from here on the log need not hold what it holds."""
        for key, copied in made.ranges():
            shard, log_floor = self.state.shards[key], self.log_floor(key)
            in_log = (file.find(key) for file in self.files)
            freed = sum(held.own_bytes for held in in_log if held is not None and log_floor < held.end <= copied.end)
            before = instead_of.find(key) if instead_of is not None else None
            if before is not None and before.end > shard.floor:
                freed += before.own_bytes
            shard.usage.held_bytes += (copied.own_bytes if copied.end > shard.floor else 0) - freed
        self.spills.add(made, instead_of)
        self._look()

    async def floors_moved(self) -> None:
        """Frees what is due. Writes down the new floors first when that needs it: at a quota nothing else would ever
        write a checkpoint.

        What a pin, a lease or the disk keeps from being freed now is tried again: there, too, nobody else would.
        """
        self._look()
        for _ in range(limits.CHECKPOINTS_KEPT):
            if len(self._freeable()[: self._due]) < self._due or self._spills_wait:
                await self.checkpoint()
        await self.free_files()
        await self.free_spills()
        await self.look_at_ballast()
        self.free_in_time()

    async def floors_lowered(self, keys: Iterable[ShardKey]) -> None:
        """Nothing above them is freed. All kept checkpoints know it, so that a start does, too (hazard 4)."""
        self.moved_ns.update(dict.fromkeys(keys, self._clock.monotonic_ns()))
        for file in self.files:
            file.look_again()
        self._look()
        for _ in range(limits.CHECKPOINTS_KEPT):
            await self.checkpoint()

    def free_in_time(self) -> None:
        """Looks again when the oldest warm file is due. Nothing happens while there is none."""
        if self.warm.files and not self._frees_later and not self.closing:
            self._frees_later = True
            self._tasks.start(self._free_later(), "wal-free-later")

    def _look(self) -> None:
        self.warm.look(self.files, self.log_floor)

    @property
    def _due(self) -> int:
        """How many of the warm files go now."""
        if self.prepare_error is not None:
            return len(self.warm.files)
        needed = self.used_bytes + self._options.file_bytes - self.quota().slow_node_bytes
        return self.warm.due(self._options.warm_ms, self._options.warm_bytes, needed)

    async def _free_later(self) -> None:
        is_late = self._due > 0
        await self._clock.sleep(limits.PIN_SECONDS_MAX if is_late else self.warm.seconds_left(self._options.warm_ms))
        self._frees_later = False
        await self.floors_moved()

    def _freeable(self) -> list[FileSummary]:
        kept = self._checkpoint_files.kept
        if len(kept) < limits.CHECKPOINTS_KEPT:
            return []
        covered = min(one.lsn for one in kept)
        free = lifecycle.freeable(
            self.warm.files, covered, lambda key: max(self._checkpointed_floor(key), self.spills.end(key))
        )
        return list(itertools.takewhile(lambda file: file.number != self._required, free))

    def _checkpointed_floor(self, key: ShardKey) -> int:
        """What all kept checkpoints know: losing the newest must not make anything missing (hazard 4)."""
        kept = self._checkpoint_files.kept
        return min(one.floors.get(key, 0) for one in kept) if len(kept) == limits.CHECKPOINTS_KEPT else 0

    @property
    def _spills_wait(self) -> bool:
        """Whether spill files could go if checkpoints knew the floors."""
        shards = self.state.shards
        passed = self.spills.passed(lambda key: shards[key].floor)
        return len(self.spills.passed(self._checkpointed_floor)) < len(passed)

    async def free_spills(self) -> None:
        shards = self.state.shards
        passed = self.spills.passed(lambda key: min(self._checkpointed_floor(key), shards[key].floor))
        free = [file for file in passed if self.leases.without_leased([file]) and self.pins.let_go(file.number)]
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
        """Takes back the oldest files that no shard, checkpoint or reader needs, and that are not kept warm."""
        self._look()
        free = self.pins.without_pinned(self.leases.without_leased(self._freeable()[: self._due]))
        if not free:
            return
        gone = {file.number for file in free}
        self.files = [file for file in self.files if file.number not in gone]
        self.sealed_bytes -= sum(file.size for file in free)
        self._look()
        metrics.WAL_FILES.set(len(self.files))
        names = [log_file.log_name(file.number) for file in free]
        await self._take_back(names)

    async def _take_back(self, names: list[str]) -> None:
        """A file that cannot be freed now is found again, and freed, after the next start."""
        try:
            await self._offload.run(lambda: self._provisioner.take_back(names))
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()

    # --- end ---

    async def settle(self) -> None:
        """The last file is sealed: gives back what is not needed and writes the clean checkpoint."""
        try:
            await self._offload.run(self._trim_last)
        except OSError:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
        await self.checkpoint(clean=True)
        unused = self._appender.next_file
        if unused is not None:
            self.handles.pop(unused.number).close()
            if unused.number > self._required:
                await self._take_back([log_file.log_name(unused.number)])

    def _trim_last(self) -> None:
        """Gives back the space behind the footer of a file that was sealed before it was full."""
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


async def _in_slices(parts: Iterator[bytes]) -> bytes:
    """All of them, with a turn of the loop behind each."""
    found: list[bytes] = []
    for part in parts:
        found.append(part)
        await asyncio.sleep(0)
    return b"".join(found)
