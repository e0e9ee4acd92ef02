"""Rows of a backup without those that were erased since (ADR 124).

A restore writes them anew, because a copy of their file would have the bytes of the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.model.erased_offsets import ErasedOffsets
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.compaction.group_messages import GroupJob
from icestream.pipeline.compaction.group_rewrite import check_understood, decode_rows, encode_group, file_parts
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.parquet_layout import layout_of
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, TableColumns
from icestream.readers.file_format import FileFormat
from icestream.readers.file_reader import FORMATS
from icestream.readers.row_deletes import RowDeletes, split_deleted
from icestream.readers.row_hashes import digest_of

_BRING_BACK: Final = "restore with --bring-back-erased where nobody reads it, and erase there again"


class StoredDataFile(NamedTuple):
    """A data file of a backup. `scan`: as its manifest describes it; `read`: reads its delete files."""

    scan: ScanDataFile
    deletes: tuple[ScanDeleteFile, ...]
    data: bytes
    read: Callable[[str], bytes]


class RestoredRows(NamedTuple):
    """The files that rows were written into, and how many rows were left out because they are erased."""

    files: list[WrittenFile]
    erased: int


def write_without(
    file: StoredDataFile,
    erased: ErasedOffsets,
    columns: TableColumns,
    target: TableTarget,
    store: FileStore,
    name: Callable[[], str],
) -> RestoredRows | None:
    """Writes a data file anew without erased and deleted rows; None if it has no erased one.

    Raises TableUnreadable for one that only the engine that wrote it can write again.
    """
    with pa.BufferReader(file.data) as source:
        metadata = pq.read_metadata(source)
        if not _has_erased(source, metadata, erased):
            return None
        layout = layout_of(target)
        decoded = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
        if decoded > limits.ERASURE_TASK_BYTES:
            raise errors.TableUnreadable(
                f"{file.scan.path} has erased messages, and decodes to {decoded} bytes", hint=_BRING_BACK
            )
        try:
            check_understood(file.scan.path, metadata, layout)
        except errors.TableUnreadable as error:
            raise errors.TableUnreadable(f"{error.message}; it has erased messages", hint=_BRING_BACK) from None
        rows = decode_rows(source, metadata)

    def open_file(path: str) -> Any:
        return pa.BufferReader(file.read(path))

    def format_of(format_name: str) -> FileFormat | None:
        return FORMATS[format_name](open_file) if format_name in FORMATS else None

    # Applied here: positions would be those of other rows, and the new file is younger than what deletes by value.
    live, _ = split_deleted(rows, RowDeletes(open_file, format_of).of(file.scan, file.deletes, columns))
    kept = unerased_rows(live, erased)
    job = GroupJob(0, 0, target, [], [], repartitions=True)  # by the present spec, whatever the file's own is
    files = []
    for part in file_parts(job, layout, kept) if kept.num_rows else ():
        written, content = encode_group(job, layout, part.rows, name, digest_of(part.rows), part.partition)
        store.put(written.location, content)
        files.append(written)
    return RestoredRows(files, live.num_rows - kept.num_rows)


def without_erased(rows: TopicRows, erased: ErasedOffsets) -> TopicRows:
    """The rows of a tail that are not erased."""
    mask = pc.invert(_erased_mask(rows.columns["shard"], rows.columns["offset"], erased))
    columns = {name: column.filter(mask) for name, column in rows.columns.items()}
    return TopicRows(rows.topic_id, columns, len(columns["offset"]))


def unerased_rows(rows: Any, erased: ErasedOffsets) -> Any:
    """The rows of an Arrow table that are not erased."""
    return rows.filter(pc.invert(_erased_mask(rows.column("shard"), rows.column("offset"), erased)))


def _has_erased(source: Any, metadata: Any, erased: ErasedOffsets) -> bool:
    """Whether a file has an erased row: the bounds of one from which they were erased still enclose them."""
    with pq.ParquetFile(source, metadata=metadata, pre_buffer=False) as parquet:
        rows = parquet.read(columns=["shard", "offset"], use_threads=False)
    return bool(pc.any(_erased_mask(rows.column("shard"), rows.column("offset"), erased)).as_py())


def _erased_mask(shards: Any, offsets: Any, erased: ErasedOffsets) -> Any:
    shard, offset = shards.to_numpy(), offsets.to_numpy()
    mask = np.zeros(len(offset), bool)
    for number, ranges in erased.shards.items():
        bounds = np.array(ranges, np.int64)
        at = np.searchsorted(bounds[:, 0], offset, "right") - 1
        mask |= (shard == number) & (at >= 0) & (offset < bounds[np.maximum(at, 0), 1])
    return pa.array(mask)
