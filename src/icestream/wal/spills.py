"""The spill log: what was copied out of the log because its table cannot be committed (hazard 8, docs/adr/0034).

A spill file `spill-<number>.wal` is a log file (format.py) of one topic: sealed, with a footer, numbered from the same
counter, so that a number names one file for ever. Its records count their LSNs from 1 and hold MESSAGES sections as
they were in the log, shard by shard. It is whole and synced before it has its name, and never changes afterwards.

    in the log      offsets of a shard from `max(floor, spilled)` on; a log file that holds none of these may go
    in the spill    offsets from the floor to `spilled`, without a hole: the ends of what the files hold
    in both         between the copy and the freeing of the log files. The same messages under the same offsets

A spill file goes when both kept checkpoints know floors beyond it, as a log file does. A small one gives way to the
next one of its topic, which holds its messages too and names it as `replaces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from icestream.model.shard import ShardKey
from icestream.runtime.files import Directory
from icestream.wal.footer import load_index
from icestream.wal.index import FileIndex
from icestream.wal.state import LogState
from icestream.wal.summary import FileSummary, Range
from icestream.wal.survey import SurveyedFile


def load_spill(directory: Directory, file: SurveyedFile) -> tuple[FileSummary, FileIndex]:
    """One that a start finds. Raises LogDamaged where neither its footer nor its records are good."""
    assert file.seal is not None
    handle = directory.open(file.name)
    try:
        index = load_index(handle, file.seal)
    finally:
        handle.close()
    return FileSummary.of(file.seal, file.size, index), index


def spilled_until(spills: Sequence[FileSummary], state: LogState, key: ShardKey) -> int:
    """The first offset from the floor on that they do not hold, and that is in no gap."""
    needed = state.step_over(key, state.shards[key].floor)
    for file in spills:
        held = file.find(key)
        if held is not None and held.first <= needed < held.end:
            needed = state.step_over(key, held.end)
    return needed


class Spills:
    def __init__(self, files: list[FileSummary]) -> None:
        self.files = files  # by number, so those of a shard by offset
        self.replaced: list[FileSummary] = []  # by others that hold the same: they go when nobody reads them
        self.changes = 0  # whoever looks at log and spill log in several steps sees that they have changed meanwhile
        self._ends: dict[ShardKey, int] = {}
        self._count()

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in (*self.files, *self.replaced))

    @property
    def topics(self) -> set[int]:
        return {file.keys[0].topic_id for file in self.files}

    def numbers(self) -> set[int]:
        return {file.number for file in (*self.files, *self.replaced)}

    def end(self, key: ShardKey) -> int:
        """The log need not hold what lies below this; 0 where nothing was spilled."""
        return self._ends.get(key, 0)

    def of(self, key: ShardKey) -> Iterator[tuple[FileSummary, Range]]:
        if key in self._ends:
            for file in self.files:
                if (held := file.find(key)) is not None:
                    yield file, held

    def find(self, key: ShardKey, offset: int) -> FileSummary | None:
        return next((file for file, held in self.of(key) if held.first <= offset < held.end), None)

    def add(self, file: FileSummary, instead_of: FileSummary | None) -> None:
        self.files = [one for one in self.files if one is not instead_of] + [file]
        self.replaced += [instead_of] if instead_of is not None else []
        self._count()

    def passed(self, floor_of: Callable[[ShardKey], int]) -> list[FileSummary]:
        """Those that lie below all floors, and those that others replace."""
        below = [file for file in self.files if all(held.end <= floor_of(key) for key, held in file.ranges())]
        return below + self.replaced

    def remove(self, files: list[FileSummary]) -> None:
        gone = {file.number for file in files}
        self.files = [file for file in self.files if file.number not in gone]
        self.replaced = [file for file in self.replaced if file.number not in gone]
        self._count()

    def _count(self) -> None:
        self.changes += 1
        self._ends = {}
        for file in self.files:
            for key, held in file.ranges():
                self._ends[key] = max(self._ends.get(key, 0), held.end)
