"""Which snapshots and tags a commit removes, and which tags it adds (hazard 23). Pure.

    age of the snapshot           expires
    below 10 minutes              never: queries may be reading it
    below 30 minutes              only if the table has more than 500 snapshots, the oldest first
    above                         yes

The age of a snapshot counts from the time of its successor: until then it was main, and queries and rewrites started
from it, however old it was. The age of the current snapshot has not begun.

A snapshot stays anyway if the table's properties say so (`history.expire.max-snapshot-age-ms`,
`history.expire.min-snapshots-to-keep`), or if a branch or tag refers to it. Snapshots outside the history of main are
left alone: staged ones, other branches. An exception is a snapshot that loses a tag of ours: it expires with the tag,
because its children have expired, so nothing would find it later.

For time travel over days, the last snapshot of each hour and day gets a tag when the next hour or day has begun; the
tag is removed after its retention. A tagged snapshot stays readable. The files of expired snapshots are removed an hour
later (pipeline/file_cleanup/cleaner.py).
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final, NamedTuple

from icestream import limits
from icestream.catalog.topic_rules.snapshot_progress import lineage
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
MIN_KEPT: Final = "history.expire.min-snapshots-to-keep"
HOUR_TAG: Final = "icestream-hour-"
DAY_TAG: Final = "icestream-day-"
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


class TagRetention(NamedTuple):
    """How long hourly and daily tags are kept. 0: no such tags."""

    hourly_tags_ms: int = limits.HOURLY_TAGS_MS_DEFAULT
    daily_tags_ms: int = limits.DAILY_TAGS_MS_DEFAULT

    def bounded(self, history_ms: int) -> TagRetention:
        """Returns the same for a topic that keeps its messages for so long (0: for ever): an older tag would only keep
        rows that are not kept."""
        if not history_ms:
            return self
        return TagRetention(min(self.hourly_tags_ms, history_ms), min(self.daily_tags_ms, history_ms))


def expired(
    table: TableMetadata, now_ms: int, removed_tags: Collection[str] = (), *, adds_snapshot: bool = True
) -> list[int]:
    """Returns the ids of the snapshots that expire now, the oldest first, when another one is added to main or, without
    `adds_snapshot`, none."""
    age_ms = max(limits.SNAPSHOT_AGE_MS, _number(table, MAX_AGE))
    min_kept = max(1, _number(table, MIN_KEPT))
    referenced_ids = {
        reference["snapshot-id"] for name, reference in table.references.items() if name not in removed_tags
    }
    history = _main_history(table, now_ms)
    history_ids = {aged.snapshot_id for aged in history}
    untagged_ids = {table.references[name]["snapshot-id"] for name in removed_tags} - history_ids
    untagged = [
        _AgedSnapshot(snapshot["snapshot-id"], snapshot["timestamp-ms"])
        for snapshot in table.snapshots
        if snapshot["snapshot-id"] in untagged_ids
    ]
    candidates = [*untagged, *reversed(history[min_kept - adds_snapshot :])]
    expired_ids = [aged.snapshot_id for aged in candidates if aged.since_ms < now_ms - age_ms]
    surplus = len(table.snapshots) + adds_snapshot - limits.SNAPSHOTS_MAX
    # Too many snapshots make every metadata file, and so every commit, larger: younger ones expire, too, down to the
    # age at which a query may still read them.
    if surplus > len(expired_ids) and not _number(table, MAX_AGE):
        limit_ms = now_ms - limits.SNAPSHOT_AGE_MS_MIN
        expired_ids = [aged.snapshot_id for aged in candidates if aged.since_ms < limit_ms][:surplus]
    return [snapshot_id for snapshot_id in expired_ids if snapshot_id not in referenced_ids]


class _AgedSnapshot(NamedTuple):
    """A snapshot, and the time from which its age counts."""

    snapshot_id: int
    since_ms: int  # the time of its successor


def _main_history(table: TableMetadata, now_ms: int) -> list[_AgedSnapshot]:
    """The history of main, the newest first. The successor of the current snapshot is made now."""
    history, since_ms = [], now_ms
    for snapshot in lineage(table, table.current_snapshot_id):
        history.append(_AgedSnapshot(snapshot["snapshot-id"], since_ms))
        since_ms = snapshot["timestamp-ms"]
    return history


def _number(table: TableMetadata, name: str) -> int:
    """A table property as a number; 0 if it is not set or not a number."""
    text = table.properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def tag_updates(table: TableMetadata, retention: TagRetention, now_ms: int) -> list[Object]:
    """Returns the updates of tags for a commit that adds a snapshot now: new tags of its parent, and tags to remove."""
    current_id = table.current_snapshot_id
    parent = None if current_id is None else table.snapshots.find(current_id)
    if parent is None:
        return []
    updates: list[Object] = []
    for prefix, period_ms, retention_ms in (
        (HOUR_TAG, _HOUR_MS, retention.hourly_tags_ms),
        (DAY_TAG, _DAY_MS, retention.daily_tags_ms),
    ):
        parent_ms = parent["timestamp-ms"]
        name = tag_name(prefix, parent_ms)
        # The parent is tagged once a later period has begun: only then it is known to be the last one of its period.
        is_period_over = parent_ms // period_ms < now_ms // period_ms
        if is_period_over and retention_ms and parent_ms > now_ms - retention_ms and name not in table.references:
            updates.append(_set_tag(name, parent["snapshot-id"], retention_ms))
        updates += [
            {"action": "remove-snapshot-ref", "ref-name": tag}
            for tag, reference in table.references.items()
            if tag.startswith(prefix) and _age_ms(table, reference, now_ms) > retention_ms
        ]
    return updates


def tag_name(prefix: str, time_ms: int) -> str:
    form = "%Y-%m-%dT%H" if prefix == HOUR_TAG else "%Y-%m-%d"
    return prefix + datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)


def _set_tag(name: str, snapshot_id: int, retention_ms: int) -> Object:
    """The tag carries its retention, so that other engines that expire snapshots remove it too."""
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": "tag",
        "snapshot-id": snapshot_id,
        "max-ref-age-ms": retention_ms,
    }


def _age_ms(table: TableMetadata, reference: Object, now_ms: int) -> int:
    snapshot = table.snapshots.find(reference["snapshot-id"])
    return now_ms - snapshot["timestamp-ms"] if snapshot is not None else 0
