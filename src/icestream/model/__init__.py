"""The values that every other package shares: topics, shards, gaps, cursors, columns, blocks, inter-process messages.

Pure data and arithmetic on it: no I/O, no clock, no event loop.
"""

from icestream.model.envelope import COLUMN_BY_ID, COLUMNS, ColumnKind, EnvelopeColumn
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode

__all__ = [
    "COLUMNS",
    "COLUMN_BY_ID",
    "ColumnKind",
    "DeclaredGap",
    "EnvelopeColumn",
    "GapState",
    "ShardKey",
    "SyncMode",
    "TopicIdentity",
]
