"""The spill log: messages copied out of the log because their table cannot be committed (hazard 8, docs/adr/0034).

A spill file `spill-<number>.wal` is a log file (format.py) of one topic: sealed, with a footer, numbered from the same
counter as log files, so that a number names one file for ever. Its records count their LSNs from 1 and hold MESSAGES
sections as they were in the log, shard by shard. It is complete and synced before it gets its name, and never changes
afterwards.

    in the log      offsets of a shard from `max(floor, spilled)` on; a log file without any of these may be freed
    in the spill    offsets from the floor to `spilled`, without a hole; `spilled` is the end of the last spill file
    in both         between the copy and the freeing of the log files: the same messages under the same offsets

A spill file is removed when both kept checkpoints contain floors beyond it, like a log file. A small one is replaced by
the next spill file of its topic, which contains its messages too and names it in `replaces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from icestream.model.shard import ShardKey
from icestream.runtime.files import Directory
from icestream.wal.file_summary import FileSummary, ShardRange
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex
from icestream.wal.state import LogState
from icestream.wal.survey import SurveyedFile


def load_spill(directory: Directory, file: SurveyedFile) -> tuple[FileSummary, FileIndex]:
    """Loads the summary and index of a spill file. Raises LogDamaged if neither footer nor records are good."""
    assert file.seal is not None
    handle = directory.open(file.name)
    try:
        index = load_index(handle, file.seal)
    finally:
        handle.close()
    return FileSummary.of(file.seal, file.size, index), index


def spilled_until(spills: Sequence[FileSummary], state: LogState, key: ShardKey) -> int:
    """The first offset at or above the shard's floor that is neither in the spill files nor in a gap."""
    offset = state.step_over(key, state.shards[key].floor)
    for file in spills:
        spilled_range = file.find(key)
        if spilled_range is not None and spilled_range.first <= offset < spilled_range.end:
            offset = state.step_over(key, spilled_range.end)
    return offset


class SpillLog:
    """The spill files of a log and the ranges they contain."""

    def __init__(self, files: list[FileSummary]) -> None:
        self.files = files  # sorted by number, so those of a shard are sorted by offset
        self.replaced: list[FileSummary] = []  # superseded by newer files: removed when no read uses them
        self.changes = 0  # lets a caller that reads log and spill log in several steps notice a change in between
        self._ends: dict[ShardKey, int] = {}
        self._rebuild_ends()

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in (*self.files, *self.replaced))

    @property
    def topics(self) -> set[int]:
        return {file.keys[0].topic_id for file in self.files}

    def numbers(self) -> set[int]:
        """The numbers of all spill files on disk, replaced ones included."""
        return {file.number for file in (*self.files, *self.replaced)}

    def end(self, key: ShardKey) -> int:
        """The offset up to which the shard is spilled, 0 for none: log files need not keep what lies below."""
        return self._ends.get(key, 0)

    def ranges_of(self, key: ShardKey) -> Iterator[tuple[FileSummary, ShardRange]]:
        """The spill files that contain messages of the shard, and which."""
        if key in self._ends:
            for file in self.files:
                if (file_range := file.find(key)) is not None:
                    yield file, file_range

    def find(self, key: ShardKey, offset: int) -> FileSummary | None:
        """The spill file that contains the offset."""
        ranges = self.ranges_of(key)
        return next((file for file, file_range in ranges if file_range.first <= offset < file_range.end), None)

    def add(self, spill_file: FileSummary, replaced: FileSummary | None) -> None:
        """Registers a durable spill file; `replaced` stays on disk until no read or lease uses it."""
        self.files = [file for file in self.files if file is not replaced] + [spill_file]
        self.replaced += [replaced] if replaced is not None else []
        self._rebuild_ends()

    def passed(self, floor_of: Callable[[ShardKey], int]) -> list[FileSummary]:
        """The spill files that lie below all floors, and the replaced ones."""
        below = [
            file for file in self.files if all(file_range.end <= floor_of(key) for key, file_range in file.ranges())
        ]
        return below + self.replaced

    def remove(self, files: list[FileSummary]) -> None:
        """Forgets files that are about to be deleted."""
        numbers = {file.number for file in files}
        self.files = [file for file in self.files if file.number not in numbers]
        self.replaced = [file for file in self.replaced if file.number not in numbers]
        self._rebuild_ends()

    def _rebuild_ends(self) -> None:
        self.changes += 1
        self._ends = {}
        for file in self.files:
            for key, file_range in file.ranges():
                self._ends[key] = max(self._ends.get(key, 0), file_range.end)
