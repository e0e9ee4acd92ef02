"""What the policy `partitioning=auto` means for a table at this moment: none, day or hour of append_time. Pure.

    present     table                                                    becomes
    none        below AUTO_PARTITIONED_TABLE_BYTES                       none
                larger, a day brings AUTO_PARTITION_BYTES or more        day
                larger, an hour brings AUTO_PARTITION_BYTES or more      hour
    day         an hour brings AUTO_PARTITION_BYTES or more              hour
                a day brings less than a quarter of it                   none
    hour        an hour brings less than a quarter of it                 day, or none by the row above
    another     (an engine's, or of a former policy)                     as if it were none

Every rate between these bounds keeps what is: a rate that moves around a bound would make a new partition spec with
each look. Less than an hour of history decides nothing.

The rate is what was committed between two snapshots, in messages, times the mean bytes of a row today: bytes of files
alone also change by compaction and retention. The later snapshot is the current one, the earlier one that nearest to a
day before it. The time of the current snapshot is the clock, so a table without commits does not change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from icestream import limits
from icestream.catalog.topic_rules.removal import COMMITTED, TOPIC_ID
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


class TableGrowth(NamedTuple):
    """Size of a table, and what a day brings."""

    bytes: int
    bytes_per_day: int


def choose(present: str, growth: TableGrowth | None) -> str:
    """Returns none, day or hour for a table that is partitioned as `present`. `growth`: None if it is not known yet."""
    current = present if present in ("day", "hour") else "none"
    if growth is None:
        return current
    enough, few = limits.AUTO_PARTITION_BYTES, limits.AUTO_PARTITION_BYTES // 4
    per_day, per_hour = growth.bytes_per_day, growth.bytes_per_day // 24
    if current == "none" and growth.bytes < limits.AUTO_PARTITIONED_TABLE_BYTES:
        return current
    if per_hour >= enough or (current == "hour" and per_hour >= few):
        return "hour"
    if per_day >= enough or (current != "none" and per_day >= few):
        return "day"
    return "none"


def table_growth(table: TableMetadata) -> TableGrowth | None:
    """Returns size and growth of a table by the summaries of its snapshots; None if they do not tell."""
    snapshots: dict[int, Object] = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
    current = snapshots.get(table.current_snapshot_id or 0)
    if current is None:
        return None
    size, rows = _count(current, "total-files-size"), _count(current, "total-records")
    messages = _committed(current)
    if not size or not rows or messages is None:
        return None
    day_before = current["timestamp-ms"] - DAY_MS
    earlier = [
        snapshot
        for snapshot in snapshots.values()
        if snapshot["timestamp-ms"] <= current["timestamp-ms"] - HOUR_MS
        and (snapshot.get("summary") or {}).get(TOPIC_ID) == current["summary"][TOPIC_ID]
    ]
    base = min(earlier, key=lambda snapshot: abs(snapshot["timestamp-ms"] - day_before), default=None)
    before = None if base is None else _committed(base)
    if base is None or before is None:
        return None
    elapsed_ms = current["timestamp-ms"] - base["timestamp-ms"]
    return TableGrowth(size, max(0, messages - before) * DAY_MS // elapsed_ms * size // rows)


def _count(snapshot: Object, name: str) -> int:
    text = str((snapshot.get("summary") or {}).get(name, ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def _committed(snapshot: Object) -> int | None:
    """The committed offsets of all shards together; None where the summary does not have them."""
    try:
        offsets = msgspec.json.decode((snapshot.get("summary") or {}).get(COMMITTED, ""), type=dict[str, int])
    except msgspec.MsgspecError:
        return None
    return sum(offsets.values())
