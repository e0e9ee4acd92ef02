"""The states of a log file, and which files may be freed. Pure; file_lifecycle.py and provision.py perform it.

    state       meaning                                          leaves it when
    PREPARED    has its header and its name, no record           the file before it is sealed            -> ACTIVE
                                                                 the log closes, and a start does not
                                                                 require it (log_file.py)                -> FREE
    ACTIVE      gets records                                     it is full, or the log closes           -> SEALED
    SEALED      records, footer and seal are synced              both kept checkpoints cover it, contain floors
                                                                 beyond it (or the rest is spilled) and name no
                                                                 file up to it as current, it is the oldest,
                                                                 has no pin or lease, and was kept warm long
                                                                 enough                                  -> FREE
    FREE        a spare, its old bytes still inside              it gets a new number and header         -> PREPARED

A checkpoint with the floors is written before a file is freed. So a start can tell a freed file, which its checkpoint
does not need, from a missing one. Files are freed strictly from the oldest on: the LSNs on disk have no hole. What one
stuck topic holds back is copied to its spill log (hazard 8, spill_log.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from icestream.model.shard import ShardKey
from icestream.wal.file_summary import FileSummary


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
    """The oldest files whose records are all at or below LSN `covered` and whose messages are all below the floors."""
    free: list[FileSummary] = []
    for file in files:
        if file.seal.last_lsn > covered or shards_above_floor(file, floor_of):
            break
        free.append(file)
    return free


def shards_above_floor(file: FileSummary, floor_of: Callable[[ShardKey], int]) -> list[ShardKey]:
    """The shards with messages in this file that are not below their floor."""
    return [key for key, file_range in file.ranges() if file_range.end > floor_of(key)]
