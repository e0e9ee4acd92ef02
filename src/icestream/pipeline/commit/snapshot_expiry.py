"""Which snapshots and tags go with a commit, and which tags come (hazard 23). Pure.

    younger than 10 minutes       never goes: somebody reads it
    younger than 30 minutes       goes only where there are more than 500, the oldest first
    older                         goes

The age of a snapshot counts from when its successor was made: until then it was main, and queries and rewrites began
with it, however old it was. That of the last one has not begun.

It stays anyway when the table says so (`history.expire.max-snapshot-age-ms`, `history.expire.min-snapshots-to-keep`),
or a branch or tag names it. Snapshots that are not in the history of main are others' business: staged ones, other
branches. But one that loses a tag of ours goes with it: its children have gone, so nobody would find it later.

So that time travel reaches back days, the last snapshot of an hour and of a day gets a tag when the next one has
begun; it goes when its time is over. What a snapshot held stays readable as long as it has one. The files of what went
are removed an hour later (pipeline/file_cleanup/cleaner.py).
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
    """How long what is kept. 0: no such tags."""

    hourly_tags_ms: int = limits.HOURLY_TAGS_MS_DEFAULT
    daily_tags_ms: int = limits.DAILY_TAGS_MS_DEFAULT


def expired(table: TableMetadata, now_ms: int, gone_tags: Collection[str] = ()) -> list[int]:
    """The snapshots that go when another one is added to main now, the oldest first."""
    age_ms = max(limits.SNAPSHOT_AGE_MS, _number(table, MAX_AGE))
    kept_min = max(1, _number(table, MIN_KEPT))
    named = {one["snapshot-id"] for name, one in table.references.items() if name not in gone_tags}
    history = _history(table, now_ms)
    left = {table.references[name]["snapshot-id"] for name in gone_tags} - {one.snapshot_id for one in history}
    history = [*reversed(history[kept_min - 1 :])]
    untagged = (one for one in table.snapshots if one["snapshot-id"] in left)
    history = [*(_Aged(one["snapshot-id"], one["timestamp-ms"]) for one in untagged), *history]
    old = [one.snapshot_id for one in history if one.since_ms < now_ms - age_ms]
    surplus = len(table.snapshots) + 1 - limits.SNAPSHOTS_MAX
    if surplus > len(old) and not _number(table, MAX_AGE):
        floor_ms = now_ms - limits.SNAPSHOT_AGE_MS_MIN
        old = [one.snapshot_id for one in history if one.since_ms < floor_ms][:surplus]
    return [one for one in old if one not in named]


class _Aged(NamedTuple):
    snapshot_id: int
    since_ms: int  # when its successor was made


def _history(table: TableMetadata, now_ms: int) -> list[_Aged]:
    """Of main, the newest first. What follows it is made now."""
    found, since_ms = [], now_ms
    for one in lineage(table, table.current_snapshot_id):
        found.append(_Aged(one["snapshot-id"], since_ms))
        since_ms = one["timestamp-ms"]
    return found


def _number(table: TableMetadata, name: str) -> int:
    found = table.properties.get(name, "")
    return int(found) if found.isascii() and found.isdigit() else 0


def tag_updates(table: TableMetadata, history: TagRetention, now_ms: int) -> list[Object]:
    """For a commit that makes a snapshot now: tags that its parent gets, and tags that go."""
    current = table.current_snapshot_id
    parent = None if current is None else table.snapshots.find(current)
    if parent is None:
        return []
    found: list[Object] = []
    for prefix, length_ms, kept_ms in (
        (HOUR_TAG, _HOUR_MS, history.hourly_tags_ms),
        (DAY_TAG, _DAY_MS, history.daily_tags_ms),
    ):
        made_ms = parent["timestamp-ms"]
        name = tag_name(prefix, made_ms)
        is_over = made_ms // length_ms < now_ms // length_ms
        if is_over and kept_ms and made_ms > now_ms - kept_ms and name not in table.references:
            found.append(_tag(name, parent["snapshot-id"], kept_ms))
        found += [
            {"action": "remove-snapshot-ref", "ref-name": tag}
            for tag, reference in table.references.items()
            if tag.startswith(prefix) and _age_ms(table, reference, now_ms) > kept_ms
        ]
    return found


def tag_name(prefix: str, time_ms: int) -> str:
    form = "%Y-%m-%dT%H" if prefix == HOUR_TAG else "%Y-%m-%d"
    return prefix + datetime.fromtimestamp(time_ms / 1000, UTC).strftime(form)


def _tag(name: str, snapshot_id: int, kept_ms: int) -> Object:
    """With its age, so that other engines that expire let it go too."""
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": "tag",
        "snapshot-id": snapshot_id,
        "max-ref-age-ms": kept_ms,
    }


def _age_ms(table: TableMetadata, reference: Object, now_ms: int) -> int:
    found = table.snapshots.find(reference["snapshot-id"])
    return now_ms - found["timestamp-ms"] if found is not None else 0
