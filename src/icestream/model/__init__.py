"""Values only: no I/O, no clock, no event loop."""

from icestream.model.envelope import COLUMN_BY_ID, COLUMNS, Column, ColumnKind
from icestream.model.shard import Gap, GapState, ShardKey, Topic
from icestream.model.sync_mode import SyncMode

__all__ = ["COLUMNS", "COLUMN_BY_ID", "Column", "ColumnKind", "Gap", "GapState", "ShardKey", "SyncMode", "Topic"]
