"""Repairs a log of which nothing is left: its directory was deleted, or is on a disk that is gone.

The directory alone cannot be told from a log that was never created, so a start refuses it only if the metadata store
knows that there was one (processes/node/log_identity.py). The repair writes one REPAIR record: the next start then
accepts positions beyond the end of the log, and skips more offsets of each shard than can have been assigned
(recovery.py). The new log has a new id, which the metadata store learns at that start.
"""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.runtime.files import Directory
from icestream.wal.damage import ClosingFile, RepairPlan
from icestream.wal.format import RecordKind
from icestream.wal.log_file import FileHeader
from icestream.wal.recovery import examine
from icestream.wal.survey import survey

_REPAIR_LSN: Final = 1


def plan_lost_log(directory: Directory, log_id: bytes) -> RepairPlan | None:
    """The repair plan for a directory without log files and checkpoints; None if there are any.

    `log_id`: the id of the new log, unless spill files are left that contain the old one.
    """
    contents = survey(directory)
    if contents.repair_decided or contents.files or contents.bad_headers or contents.checkpoint:
        return None
    # A checkpoint that cannot be read still proves that there was a log: damage.py plans the repair.
    if contents.checkpointed_lsn:
        return None
    header = FileHeader(contents.log_id or log_id, contents.number_max + 1, 0, 0, 0, 0)
    closing = ClosingFile(header, RecordKind.REPAIR, _REPAIR_LSN, _REPAIR_LSN, [])
    return RepairPlan(closing=closing, has_lost_end=True, is_lost_whole=True)


def replaces_lost_log(directory: Directory) -> bool:
    """Whether the directory contains the result of such a repair and no start has used it since.

    That is one file with one record, and no checkpoint: every start writes one.
    """
    contents = survey(directory)
    if contents.checkpoint is not None or len(contents.files) != 1:
        return False
    try:
        replay = examine(directory, contents)
    except errors.LogDamaged:
        return False
    return replay.repaired_lsn == replay.report.last_lsn == _REPAIR_LSN
