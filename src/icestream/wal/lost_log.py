"""The repair of a log of which nothing is left: its directory was deleted, or is on a disk that is gone.

The directory alone does not tell that from a log that was never begun, so a start refuses it only where the metadata
store knows that there was one (server/log_identity.py). The repair leaves one REPAIR record: the next start then
accepts that others know offsets the log does not, and skips more of each shard than can have been given out
(recovery.py).
Such a log has a new id, which the metadata store does not know before that start.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.runtime.files import Directory
from icestream.wal.damage import Closing, RepairPlan
from icestream.wal.format import RecordKind
from icestream.wal.log_file import FileHeader
from icestream.wal.recovery import examine
from icestream.wal.survey import survey

_REPAIR_LSN: Final = 1


def plan_lost_log(directory: Directory, log_id: bytes) -> RepairPlan | None:
    """The repair of a directory without log files and checkpoints; None where there are some. `log_id`: of the log that
    begins here, unless spill files are left that name theirs."""
    found = survey(directory)
    if found.repair_decided or found.files or found.bad_headers or found.checkpoint or found.checkpointed_lsn:
        return None
    header = FileHeader(found.log_id or log_id, found.number_max + 1, 0, 0, 0, 0)
    closing = Closing(header, RecordKind.REPAIR, _REPAIR_LSN, _REPAIR_LSN, [])
    return RepairPlan(closing=closing, has_lost_end=True, is_lost_whole=True)


def replaces_lost_log(directory: Directory) -> bool:
    """Whether the log in the directory is what the repair of a lost log left, and no start has used it: one file with
    one record. Every start writes a checkpoint."""
    contents = survey(directory)
    if contents.checkpoint is not None or len(contents.files) != 1:
        return False
    try:
        replay = examine(directory, contents)
    except errors.LogDamaged:
        return False
    return replay.repaired_lsn == replay.report.last_lsn == _REPAIR_LSN
