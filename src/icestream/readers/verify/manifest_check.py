"""Which offsets a table holds, by its manifests, where they say enough: files of one shard that do not overlap, with as
many rows as offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from icestream.observability.words import counted
from icestream.readers.data_files import DataFile, SnapshotFiles
from icestream.readers.verify.offset_ranges import ShardOffsets, append_ranges
from icestream.readers.verify.verify_report import Finding, Weight, failure


def look(shard: int, files: Sequence[DataFile], has_deletes: bool, held: ShardOffsets) -> Iterator[Finding]:
    if not is_alone(shard, files) or any(None in file.offsets for file in files) or has_deletes:
        yield _unlooked(shard, "files hold several shards, lack bounds, or have rows deleted")
        return
    ranges = sorted((_int(file.offsets.low), _int(file.offsets.high) + 1, file) for file in files)
    for (low, end, one), (start, high, other) in pairwise(ranges):
        if start < end and one.rows + other.rows > max(end, high) - low:
            yield failure("unique", f"{one.path} and {other.path} have more rows than offsets", shard, start, end)
        if start < end:
            yield _unlooked(shard, f"{one.path} and {other.path} overlap")
            return
    for start, end, file in ranges:
        if file.rows > end - start:
            text = f"{file.path} has {counted(file.rows, 'row')} in {counted(end - start, 'offset')}"
            yield failure("unique", text, shard, start, end)
    if any(file.rows < end - start for start, end, file in ranges):
        yield _unlooked(shard, "files have offsets without a row in between")
        return
    append_ranges(held.ranges, [(start, end) for start, end, _ in ranges])
    held.is_known = True


def is_alone(shard: int, files: Sequence[DataFile]) -> bool:
    """Whether these files have rows of this shard only."""
    return all(file.shards == (shard, shard) for file in files)


def strays(shards: Collection[int], named: SnapshotFiles) -> Iterator[Finding]:
    """Rows of shards that the topic does not have, as far as bounds tell: a deleted row bounds its file, too."""
    for file in named.data:
        for shard in sorted({one for one in file.shards if one is not None} - set(shards)):
            words = f"{file.path} has rows of shard {shard}, which the topic does not have"
            if named.deletes_of(file):
                yield _unlooked(shard, f"{words}, or had some")
            else:
                yield failure("bounds", words, shard)


def _unlooked(shard: int, why: str) -> Finding:
    text = f"{why}: only `--deep` can tell whether rows are missing"
    return Finding("dense", Weight.BOUNDS_ONLY, text, shard)


def _int(value: int | None) -> int:
    assert value is not None
    return value
