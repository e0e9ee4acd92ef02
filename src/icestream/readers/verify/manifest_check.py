"""Finds the offsets that a table has by its manifests alone. Pure.

The bounds of a file prove its offsets only if it has rows of one shard, no deletes, no overlap with another file, and
as many rows as offsets. The pipeline writes such files; for other files `verify` reports that only `--deep` can check
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from icestream.observability.words import counted
from icestream.readers.data_files import ScanDataFile, SnapshotFiles
from icestream.readers.verify.offset_ranges import ShardOffsetRanges, append_ranges
from icestream.readers.verify.verify_report import Finding, Weight, failure


def check_shard(
    shard: int, files: Sequence[ScanDataFile], has_deletes: bool, offsets: ShardOffsetRanges
) -> Iterator[Finding]:
    """Fills `offsets` if the manifests prove them; yields violations, and the reason if they prove nothing."""
    if not has_one_shard(shard, files) or any(None in file.offsets for file in files) or has_deletes:
        yield _not_checked(shard, "files hold several shards, lack bounds, or have rows deleted")
        return
    ranges = sorted((_int(file.offsets.low), _int(file.offsets.high) + 1, file) for file in files)
    for (low, end, file), (start, high, other) in pairwise(ranges):
        if start < end and file.rows + other.rows > max(end, high) - low:
            yield failure("unique", f"{file.path} and {other.path} have more rows than offsets", shard, start, end)
        if start < end:
            yield _not_checked(shard, f"{file.path} and {other.path} overlap")
            return
    for start, end, file in ranges:
        if file.rows > end - start:
            text = f"{file.path} has {counted(file.rows, 'row')} in {counted(end - start, 'offset')}"
            yield failure("unique", text, shard, start, end)
    if any(file.rows < end - start for start, end, file in ranges):
        yield _not_checked(shard, "files have offsets without a row in between")
        return
    append_ranges(offsets.ranges, [(start, end) for start, end, _ in ranges])
    offsets.is_known = True


def has_one_shard(shard: int, files: Sequence[ScanDataFile]) -> bool:
    """True if these files have rows of this shard only."""
    return all(file.shards == (shard, shard) for file in files)


def find_strays(shards: Collection[int], files: SnapshotFiles) -> Iterator[Finding]:
    """Yields files with rows of shards that the topic does not have, as far as bounds tell: the bounds of a file cover
    deleted rows, too."""
    for file in files.data:
        for shard in sorted({bound for bound in file.shards if bound is not None} - set(shards)):
            text = f"{file.path} has rows of shard {shard}, which the topic does not have"
            if files.deletes_of(file):
                yield _not_checked(shard, f"{text}, or had some")
            else:
                yield failure("bounds", text, shard)


def _not_checked(shard: int, reason: str) -> Finding:
    text = f"{reason}: only `--deep` can check whether rows are missing"
    return Finding("dense", Weight.BOUNDS_ONLY, text, shard)


def _int(value: int | None) -> int:
    assert value is not None
    return value
