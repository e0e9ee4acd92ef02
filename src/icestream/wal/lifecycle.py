"""Which log files may be used again. Pure: the decision; provision.py carries it out.

    state       means                                            goes on when
    PREPARED    has its header and its name, no record           the file before it is sealed            -> ACTIVE
                                                                 the log closes, and a start does not
                                                                 require it (log_file.py)                -> FREE
    ACTIVE      gets records                                     it is full, or the log closes           -> SEALED
    SEALED      records, footer and seal are synced              both kept checkpoints cover it and know floors
                                                                 beyond it, or what lies above them is spilled; it is
                                                                 the oldest, nobody reads or leases it,
                                                                 and it was kept warm long enough        -> FREE
    FREE        a spare, its old bytes still inside              it gets a new number and header         -> PREPARED

What is freed must be written down first: a start that finds no file then knows from its checkpoint that none is
needed, and a missing file is told from a freed one. Files go strictly from the oldest: LSNs on disk have no hole. What
one topic holds back is copied to its spill log (hazard 8, spills.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from icestream.model.shard import ShardKey
from icestream.wal.summary import FileSummary


class FileState(StrEnum):
    PREPARED = "prepared"
    ACTIVE = "active"
    SEALED = "sealed"
    FREE = "free"


NEXT_STATES: Mapping[FileState, tuple[FileState, ...]] = {
    FileState.PREPARED: (FileState.ACTIVE, FileState.FREE),
    FileState.ACTIVE: (FileState.SEALED,),
    FileState.SEALED: (FileState.FREE,),
    FileState.FREE: (FileState.PREPARED,),
}


def freeable(files: Sequence[FileSummary], covered: int, floor_of: Callable[[ShardKey], int]) -> list[FileSummary]:
    """The oldest files that nothing needs any more, in order: every record up to LSN `covered`, every floor passed."""
    free: list[FileSummary] = []
    for file in files:
        if file.seal.last_lsn > covered or held_by(file, floor_of):
            break
        free.append(file)
    return free


def held_by(file: FileSummary, floor_of: Callable[[ShardKey], int]) -> list[ShardKey]:
    """The shards with messages in this file that are not below their floor."""
    return [key for key, held in file.ranges() if held.end > floor_of(key)]
