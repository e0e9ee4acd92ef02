"""The repair of a log of which nothing is left: its directory was deleted, or is on a disk that is gone.

The directory alone does not tell that from a log that was never begun, so a start refuses it only where the metadata
store knows that there was one (server/log_record.py). The repair leaves one REPAIR record: the next start then accepts
that others know offsets the log does not, and skips more of each shard than can have been given out (recovery.py).
"""

from __future__ import annotations

from icestream.runtime.files import Directory
from icestream.wal.damage import Closing, RepairPlan
from icestream.wal.format import RecordKind
from icestream.wal.log_file import FileHeader
from icestream.wal.survey import survey


def plan_lost_log(directory: Directory, log_id: bytes) -> RepairPlan | None:
    """The repair of a directory without log files and checkpoints; None where there are some. `log_id`: of the log that
    begins here, unless spill files are left that name theirs."""
    found = survey(directory)
    if found.repair_decided or found.files or found.bad_headers or found.checkpoint or found.checkpointed_lsn:
        return None
    header = FileHeader(found.log_id or log_id, found.number_max + 1, 0, 0, 0, 0)
    closing = Closing(header, RecordKind.REPAIR, 1, 1, [])
    return RepairPlan(closing=closing, has_lost_end=True, is_lost_whole=True)
