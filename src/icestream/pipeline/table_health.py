"""How a table is: files, deletes, snapshots, bytes, and a score with its reasons. Pure.

The score is 100 for a table that nothing could make faster to query, and loses points for

    small files       up to 50: the share of files that compaction would merge, from 8 of them on
    delete files      up to 30: 3 for each, because every read of the table opens them
    snapshots         10 beyond limits.SNAPSHOTS_MAX: each commit writes them all
    bytes of tags     10 if tags keep more than the table has itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from icestream import limits
from icestream.observability.words import counted, size_text


class TableHealth(NamedTuple):
    """The state of a table."""

    table: str
    score: int
    files: int
    small_files: int
    delete_files: int
    snapshots: int
    oldest_snapshot_ms: int | None
    live_bytes: int  # of the files of the current snapshot
    tag_bytes: int  # of files that only tags keep
    reasons: tuple[str, ...]


def tagged_snapshots(metadata: Mapping[str, Any]) -> list[int]:
    """The snapshots that tags and other branches keep, without the current one."""
    references = metadata.get("refs") or {}
    named_ids = {int(reference["snapshot-id"]) for reference in references.values()}
    return sorted(named_ids - {metadata.get("current-snapshot-id")})


def table_health(
    table: str,
    metadata: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    tagged: Mapping[str, int],
    *,
    is_cut: bool,
) -> TableHealth:
    """`files`: of the current snapshot, as `icestream lake files` lists them. `tagged`: bytes by path, of tagged
    snapshots. `is_cut`: there are more than were read."""
    data = [file for file in files if file["content"] == "data"]
    deletes = len(files) - len(data)
    small = sum(2 * file["bytes"] < limits.COMPACTION_GROUP_BYTES for file in data)
    live = {file["path"]: file["bytes"] for file in files}
    live_bytes = sum(live.values())
    tag_bytes = sum(size for path, size in tagged.items() if path not in live)
    snapshots = metadata.get("snapshots") or ()
    points = 100
    reasons: list[str] = []
    if small >= limits.COMPACTION_FILES_MIN:
        points -= 50 * small // len(data)
        reasons.append(f"{small} of {counted(len(data), 'file')} are small: `icestream lake maintain` merges them")
    if deletes:
        points -= min(30, 3 * deletes)
        reasons.append(f"{counted(deletes, 'delete file')}: `icestream lake maintain` applies them")
    if len(snapshots) > limits.SNAPSHOTS_MAX:
        points -= 10
        reasons.append(f"{len(snapshots)} snapshots: each commit writes them all")
    if tag_bytes > live_bytes:
        points -= 10
        reasons.append(f"tags keep {size_text(tag_bytes)}: see pipeline.tag_bytes_max and daily_tags_kept_ms")
    if is_cut:
        reasons.append(f"only the first {limits.HEALTH_FILES_MAX} files were looked at")
    oldest_ms = min((int(snapshot["timestamp-ms"]) for snapshot in snapshots), default=None)
    return TableHealth(
        table, points, len(data), small, deletes, len(snapshots), oldest_ms, live_bytes, tag_bytes, tuple(reasons)
    )
