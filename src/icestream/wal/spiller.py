"""Copies what stuck topics have in the oldest log files into spill files, so that those can be let go (hazard 8).

Nothing happens while there is room. Under pressure it looks at once, and then every few seconds as long as that lasts.
What goes wrong (a reader's position that is gone, a disk that is full) costs nothing: the log still has it all.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.shard import ShardKey, Topic
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.files import Directory
from icestream.runtime.tasks import Offload, Tasks
from icestream.wal import spilling
from icestream.wal.log_file import FileHeader
from icestream.wal.options import LogOptions
from icestream.wal.reader import Reader
from icestream.wal.spill_file import SpillFile
from icestream.wal.summary import FileSummary
from icestream.wal.upkeep import Upkeep

_log = get_logger("wal")


class _Part(NamedTuple):
    """Offsets of one shard that are to be copied."""

    key: ShardKey
    start: int
    end: int


class Spiller:
    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        offload: Offload,
        tasks: Tasks,
        upkeep: Upkeep,
        reader: Reader,
        options: LogOptions,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._offload = offload
        self._tasks = tasks
        self._upkeep = upkeep
        self._reader = reader
        self._file_bytes = options.file_bytes
        self._seen_ns: dict[int, int] = {}  # since when a log file is known to be sealed
        self._opened_ns = clock.monotonic_ns()
        self._is_running = False
        upkeep.on_sealed = self.look

    def look(self) -> None:
        """A file was sealed, or found at a start."""
        now_ns = self._clock.monotonic_ns()
        self._seen_ns = {file.number: self._seen_ns.get(file.number, now_ns) for file in self._upkeep.files}
        if not self._is_running and self._is_pressed:
            self._is_running = True
            self._tasks.start(self._run(), "wal-spill")

    @property
    def _is_pressed(self) -> bool:
        upkeep = self._upkeep
        held_files = len(upkeep.files) - len(upkeep.warm.files)
        return not upkeep.closing and (
            upkeep.prepare_error is not None
            or spilling.is_pressed(upkeep.held_bytes, held_files, upkeep.quota().node_bytes)
        )

    async def _run(self) -> None:
        try:
            while self._is_pressed:
                if not await self.step():
                    await self._clock.sleep(limits.SPILL_LOOK_SECONDS)
        finally:
            self._is_running = False

    async def step(self) -> bool:
        """Lets go of some files, if it pays; whether it did."""
        try:
            async with self._upkeep.copying:
                ends = spilling.to_spill(self._upkeep.files, self._upkeep.log_floor, self._is_stuck)
                for topic_id, keys in groupby(sorted(ends), key=lambda key: key.topic_id):
                    await self._spill(self._upkeep.state.topics[topic_id], {key: ends[key] for key in keys})
        except (errors.LogError, OSError) as error:
            metrics.WAL_MAINTENANCE_FAILURES.inc()
            _log.warning("what a stuck topic has in the log could not be copied", reason=str(error))
            return False
        if ends:
            await self._upkeep.floors_moved()
        return bool(ends)

    def _is_stuck(self, key: ShardKey, file: FileSummary) -> bool:
        since_ns = max(
            self._upkeep.moved_ns.get(key, self._opened_ns), self._seen_ns.get(file.number, self._clock.monotonic_ns())
        )
        return self._clock.monotonic_ns() - since_ns >= int(limits.SPILL_STUCK_SECONDS * 1e9)

    # --- one topic ---

    async def _spill(self, topic: Topic, ends: spilling.Ends) -> None:
        """Into as many files as it takes; a small one of before goes into the first, whole."""
        merged = self._small(topic.id)
        parts = [_Part(key, self._upkeep.log_floor(key), end) for key, end in sorted(ends.items())]
        for part in parts:
            _log.warning(
                "a topic without progress is copied out of the log", topic=topic.name, shard=part.key.shard,
                start=part.start, end=part.end,
            )  # fmt: skip
        parts = self._held_by(merged) + parts
        whole = len(parts) - len(ends)
        while parts:
            made = await self._write(topic, parts, merged, whole)
            if made is not None:
                self._upkeep.spilled(made, merged)
                metrics.WAL_SPILLED_BYTES.inc(made.size)
            merged, whole = None, 0

    def _small(self, topic_id: int) -> FileSummary | None:
        """The topic's last spill file, if it is small: many of them would cost more than their bytes."""
        of_topic = [file for file in self._upkeep.spills.files if file.keys[0].topic_id == topic_id]
        return of_topic[-1] if of_topic and of_topic[-1].size < self._file_bytes // 2 else None

    def _held_by(self, merged: FileSummary | None) -> list[_Part]:
        found = merged.ranges() if merged is not None else ()
        parts = [_Part(key, max(held.first, self._upkeep.state.shards[key].floor), held.end) for key, held in found]
        return [part for part in parts if part.start < part.end]

    async def _write(
        self, topic: Topic, parts: list[_Part], instead_of: FileSummary | None, whole: int
    ) -> FileSummary | None:
        """One file from the front of the parts, which it takes from the list: `whole` of them, and what else it has
        room for. None when nothing of them was left to copy."""
        replaces = instead_of.number if instead_of is not None else 0
        header = FileHeader(self._upkeep.log_id, self._upkeep.take_number(), replaces, 0, self._clock.wall_us(), 0)
        file = await self._offload.run(lambda: SpillFile(self._directory, header, topic))
        try:
            while parts and (whole > 0 or file.size < self._file_bytes):
                rest = await self._copy(file, parts.pop(0))
                if rest is not None:
                    parts.insert(0, rest)
                else:
                    whole -= 1
            if file.is_empty:
                await self._offload.run(file.give_up)
                return None
            return await self._offload.run(file.publish)
        except BaseException:
            file.give_up()
            raise

    async def _copy(self, file: SpillFile, part: _Part) -> _Part | None:
        """One record; what is left of the part."""
        found = await self._reader.read(part.key, part.start, limits.READ_BYTES_DEFAULT)
        sections = [section for section in found.sections if section.base_offset < part.end]
        if not sections:
            return None
        await self._offload.run(lambda: file.add(part.key, sections))
        return part._replace(start=found.next_offset) if found.next_offset < part.end else None
