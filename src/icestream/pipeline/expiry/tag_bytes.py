"""Which tags of the pipeline go, so that what they keep stays within a bound. Pure.

Counted is what would be free without the tags of the pipeline: files that neither main nor another reference names,
such as a branch, a tag of a user, or the tag of a backup. Those are never removed, whatever they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.pipeline.commit.snapshot_expiry import DAY_TAG, HOUR_TAG


class KeptSnapshots(NamedTuple):
    """The snapshots that references keep: by tags of the pipeline, the newest first, and by everything else."""

    tagged: Sequence[tuple[int, tuple[str, ...]]]  # a snapshot, and its tags
    others: frozenset[int]


class TagBytes(NamedTuple):
    """What tags of the pipeline keep, and those that are too many."""

    kept_bytes: int  # by the tags that stay
    surplus: tuple[str, ...]  # tags to remove


def kept_snapshots(table: TableMetadata, removed_tags: Iterable[str] = ()) -> KeptSnapshots:
    """`removed_tags`: go anyway, for their age."""
    gone = set(removed_tags)
    tags: dict[int, list[str]] = {}
    others: set[int] = set()
    for name, reference in table.references.items():
        if name in gone:
            continue
        if name != MAIN and name.startswith((HOUR_TAG, DAY_TAG)):
            tags.setdefault(reference["snapshot-id"], []).append(name)
        else:
            others.add(reference["snapshot-id"])
    by_age = sorted(tags, key=lambda snapshot_id: _time_ms(table, snapshot_id), reverse=True)
    tagged = [(snapshot_id, tuple(sorted(tags[snapshot_id]))) for snapshot_id in by_age if snapshot_id not in others]
    return KeptSnapshots(tagged, frozenset(others))


def _time_ms(table: TableMetadata, snapshot_id: int) -> int:
    snapshot = table.snapshots.find(snapshot_id)
    return 0 if snapshot is None else int(snapshot["timestamp-ms"])


class TagBytesCount:
    """Adds up what tags keep, from the newest one on; everything older than the first surplus one is surplus, too: time
    travel reaches back without holes."""

    def __init__(self, bytes_max: int, named: Iterable[str]) -> None:
        """`named`: the files that are named by something else than tags of the pipeline."""
        self._bytes_max = bytes_max
        self._named = set(named)
        self._kept_bytes = 0
        self._surplus: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether all tags that follow are surplus, whatever their files are."""
        return bool(self._surplus)

    def add(self, tags: Sequence[str], files: Mapping[str, int]) -> None:
        """The tags of the next older snapshot, and its files with their bytes."""
        if not self._surplus:
            new = files.keys() - self._named
            size = sum(files[path] for path in new)
            if self._kept_bytes + size <= self._bytes_max:
                self._named |= new
                self._kept_bytes += size
                return
        self._surplus += tags

    @property
    def result(self) -> TagBytes:
        return TagBytes(self._kept_bytes, tuple(self._surplus))
