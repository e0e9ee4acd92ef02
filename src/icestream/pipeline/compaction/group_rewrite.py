"""The task of a compaction: reads a group of files, writes their rows into as few as possible, reads those back.

    understand   every column of a file has a field id of the table and exactly the type that the pipeline writes; a
                 file that is not fully understood is left alone, and with it the rest of the group (hazard 83)
    read         the first files of the group that fit the memory of a task, by the sizes in their footers. The digest
                 of the rows of each is the one in its footer, which ingest computed from the log; of a file without
                 one it is computed (docs/adr/0064, 0135)
    copy         column chunks as they are, if the files follow one another by offset and nothing of them is deleted;
                 else all that follows (copied_chunks.py)
    delete       the rows that delete files delete, as readers do (readers/row_deletes.py); a group with a delete that
                 cannot be applied is left alone
    order        by shard and offset; a row group has rows of one shard (hazard 94). Within parts by other columns,
                 where the topic's policy says so or the table has columns of MQTT topics (row_order.py)
    divide       files of an older partition spec: by the values of the present one, a file for each (ADR 127)
    write        as ingest does, with the layout id in the footer
    read back    from the storage, and decoded; the digest of what was read is reported beside that of the inputs. If it
                 is not that of the inputs without what was deleted, each input is decoded once more, to name the one
                 that does not have its rows

A task is a function of bytes, as those of a round are. It imports no Spark and raises nothing for bad data.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import errors, limits
from icestream.model.pipeline_file_name import data_name
from icestream.model.row_digest import FOOTER_KEY, RowDigest, parse_digest, sum_of
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.compaction.copied_chunks import Source, copy_chunks
from icestream.pipeline.compaction.group_messages import GroupJob, GroupResult, InputFile, decode_job, encode
from icestream.pipeline.compaction.row_order import OFFSET_LAYOUT, layout_id, row_groups
from icestream.pipeline.files.data_file import ROW_GROUP_BYTES, ColumnMetrics, column_metrics, encode_parquet
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.parquet_layout import ARROW, REPEATED, ParquetLayout, layout_of
from icestream.pipeline.files.partition_groups import group_by_partition
from icestream.pipeline.files.topic_files import covered_ranges
from icestream.pipeline.round_plan import TableTarget
from icestream.readers.data_files import ScanDataFile, ScanDeleteFile, TableColumns
from icestream.readers.file_reader import FORMATS
from icestream.readers.row_deletes import Deletes, RowDeletes, split_deleted
from icestream.readers.row_hashes import digest_of

# How the rows of a file are ordered, for the planner of a later release: a file with the layout that its table asks for
# is not rewritten for its order again.
LAYOUT_KEY: Final = b"icestream.layout"
_FIELD_ID: Final = b"PARQUET:field_id"
_ROW_BYTES: Final = 96  # of a row in memory beside its values: offsets, masks, sort keys


OpenStore = Callable[[TableTarget], FileStore]


class FilePart(NamedTuple):
    """The rows of one file, all of one partition."""

    partition: list[Any]
    rows: Any


class _Inputs(NamedTuple):
    rows: Any  # that are not deleted
    digest: RowDigest  # of all rows, by their footers
    deleted: RowDigest

    @property
    def live(self) -> RowDigest:
        """What the files that replace them must have."""
        return self.digest.minus(self.deleted)


class StoredRows(NamedTuple):
    """What reading a file back shows."""

    digest: RowDigest
    nulls: dict[str, int]  # of each column
    metadata: Any


def rewrite_group(data: bytes, open_store: OpenStore, name: Callable[[], str]) -> bytes:
    """Rewrites one group. Returns a GroupResult as bytes; an error becomes its reason."""
    job = decode_job(data)
    start = time.process_time()
    try:
        result = _rewrite(job, open_store, name)
    except errors.IcestreamError as error:
        result = GroupResult(job.number, reason=error.message)
    except Exception as error:  # noqa: BLE001  # one group must not affect the others
        result = GroupResult(job.number, reason=repr(error))
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu_seconds = time.process_time() - start
    return encode(msgspec.structs.replace(result, cpu_seconds=cpu_seconds, memory_bytes=memory_bytes))


def _rewrite(job: GroupJob, open_store: OpenStore, name: Callable[[], str]) -> GroupResult:
    layout, store = layout_of(job.target), open_store(job.target)
    sources = _read_sources(job, layout, store)
    if len(sources) < min(1 if job.repartitions else 2, len(job.files)):
        return GroupResult(job.number, reason="too few of its files fit the memory of a task")
    locations = [file.location for file in job.files[: len(sources)]]
    read_bytes = sum(len(source.data) for source in sources)
    if (copied := _copy(job, layout, sources, store, name)) is not None:
        return copied
    inputs = _decode_sources(job, layout, sources, store)
    files = []
    parts = list(file_parts(job, layout, inputs.rows)) if inputs.rows is not None and inputs.rows.num_rows else []
    if len(parts) >= len(locations) and not inputs.deleted.rows and not job.repartitions:
        return GroupResult(job.number, reason="it would be as many files as before", read_bytes=read_bytes)
    for part in parts:
        # One file has all rows: what it should have is known, and reading it back shows whether it has.
        digest = inputs.live if len(parts) == 1 else digest_of(part.rows)
        file, data = encode_group(job, layout, part.rows, name, digest, part.partition)
        store.put(file.location, data)
        files.append(file)
    if failures := store.settle():
        return GroupResult(job.number, reason=next(iter(failures.values())), read_bytes=read_bytes)
    # The digest is of the files as they are read back, not of the rows that were to be written: a fault of decoder,
    # encoder or store makes it differ from that of the inputs, and the catalog refuses the rewrite (ADR 64, 135).
    added = sum_of(read_back(store, file.location).digest for file in files)
    if added != inputs.live:
        _check_inputs(store, locations)
    return GroupResult(
        job.number, locations, files, inputs.digest.text, added.text, inputs.deleted.text, read_bytes=read_bytes
    )


def _copy(
    job: GroupJob, layout: ParquetLayout, sources: list[Source], store: FileStore, name: Callable[[], str]
) -> GroupResult | None:
    """Makes one file of all, most of it copied; None if the rows have to be decoded. Nothing was written then."""
    locations = [file.location for file in job.files[: len(sources)]]
    read_bytes = sum(len(source.data) for source in sources)
    digests = [digest for source in sources if (digest := footer_digest(source.metadata)) is not None]
    if (
        len(digests) < max(2, len(sources))
        or job.repartitions
        or any(file.deletes for file in job.files[: len(sources)])
        or layout_id(job.target.clustering, layout) != OFFSET_LAYOUT
        or read_bytes > job.target.target_bytes
    ):
        return None
    digest = sum_of(digests)
    copied = copy_chunks(sources, layout, job.target, _footer(job, layout, digest))
    if copied is None:
        return None
    location = _fresh_location(job, name)
    store.put(location, *copied.pieces)
    failures = store.settle()
    size, rows = sum(map(len, copied.pieces)), copied.rows
    del copied
    sources.clear()
    if failures:
        return GroupResult(job.number, reason=next(iter(failures.values())), read_bytes=read_bytes)
    stored = read_back(store, location)
    if stored.digest != digest:
        _check_inputs(store, locations)
    metrics = column_metrics(layout, stored.metadata, stored.nulls)
    file = _entry(job, layout, location, size, rows, metrics, digest, job.partition)
    return GroupResult(job.number, locations, [file], digest.text, stored.digest.text, read_bytes=read_bytes)


def read_back(store: FileStore, location: str) -> StoredRows:
    """Reads a file as readers do, a few row groups at a time."""
    digests: list[RowDigest] = []
    nulls: Counter[str] = Counter()
    with store.open(location) as source:
        metadata = pq.read_metadata(source)
        for numbers in _windows(metadata):
            rows = decode_rows(source, metadata, numbers)
            digests.append(digest_of(rows))
            nulls.update({name: rows.column(name).null_count for name in rows.column_names})
    return StoredRows(sum_of(digests), nulls, metadata)


def _windows(metadata: Any) -> Iterator[list[int]]:
    """Yields the numbers of row groups that together are about as large as one of ingest."""
    window: list[int] = []
    size = 0
    for number in range(metadata.num_row_groups):
        group_bytes = metadata.row_group(number).total_byte_size
        if window and size + group_bytes > ROW_GROUP_BYTES:
            yield window
            window, size = [], 0
        window.append(number)
        size += group_bytes
    if window:
        yield window


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_sources(job: GroupJob, layout: ParquetLayout, store: FileStore) -> list[Source]:
    """Reads the first files of the group, as many as fit when they are decoded. Raises TableUnreadable for one that is
    not understood."""
    sources: list[Source] = []
    decoded_bytes = 0
    for file in job.files:
        data = store.read(file.location)
        with pa.BufferReader(data) as source:
            metadata = pq.read_metadata(source)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        decoded_bytes += sum(group.total_byte_size for group in groups) + _ROW_BYTES * metadata.num_rows
        if decoded_bytes > job.memory_bytes:
            break
        check_understood(file.location, metadata, layout)
        digest = footer_digest(metadata)
        if metadata.num_rows != file.rows or (digest is not None and digest.rows != file.rows):
            raise has_other_rows(file.location)
        sources.append(Source(data, metadata))
    return sources


def _decode_sources(job: GroupJob, layout: ParquetLayout, sources: list[Source], store: FileStore) -> _Inputs:
    """Decodes the files, each of which is dropped from `sources` then, and applies their deletes."""
    tables, digests, deleted = [], [], []
    row_deletes = row_deletes_in(store)
    for file in job.files[: len(sources)]:
        data, metadata = sources.pop(0)
        with pa.BufferReader(data) as source:
            rows = decode_rows(source, metadata)
        if rows.num_rows != file.rows:
            raise has_other_rows(file.location)
        digests.append(footer_digest(metadata) or digest_of(rows))
        live, deleted_rows = split_deleted(rows, deletes_of(job, file, row_deletes, layout))
        tables.append(live)
        deleted.append(digest_of(deleted_rows))
    rows = pa.concat_tables(tables, promote_options="default") if tables else None
    return _Inputs(rows, sum_of(digests), sum_of(deleted))


def footer_digest(metadata: Any) -> RowDigest | None:
    """The digest in the footer of a file; None in one of another engine. Raises InvalidInput."""
    text = (metadata.metadata or {}).get(FOOTER_KEY)
    return None if text is None else parse_digest(text.decode())


def has_other_rows(location: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"{location} does not have the rows that its footer states",
        hint="`icestream verify --deep` checks the table; the file stays as it is",
    )


def _check_inputs(store: FileStore, locations: Sequence[str]) -> None:
    """Decodes each input of a rewrite that failed. Raises TableUnreadable for the first one without its rows."""
    for location in locations:
        with pa.BufferReader(store.read(location)) as source:
            metadata = pq.read_metadata(source)
            if footer_digest(metadata) not in (None, digest_of(decode_rows(source, metadata))):
                raise has_other_rows(location)


def row_deletes_in(store: FileStore) -> RowDeletes:
    def open_file(location: str) -> Any:
        return pa.BufferReader(store.read(location))

    return RowDeletes(open_file, lambda name: FORMATS[name](open_file) if name in FORMATS else None)


def deletes_of(job: GroupJob, file: InputFile, row_deletes: RowDeletes, layout: ParquetLayout) -> Deletes:
    """Returns what is deleted from a file. Raises TableUnreadable for a delete file that cannot be applied."""
    deletes = tuple(
        ScanDeleteFile(
            delete.path,
            delete.format,
            delete.content,
            delete.rows,
            delete.size_bytes,
            sequence=0,  # which deletes apply was decided by the plan
            equality_ids=tuple(delete.equality_ids),
            blob=delete.blob,
        )
        for delete in (job.deletes[number] for number in file.deletes)
    )
    ids = {column.name: column.field_id for column in layout.columns}
    columns = TableColumns(ids, {name: (name,) for name in ids})
    return row_deletes.of(ScanDataFile(file.location, "parquet", file.rows, 0, 0), deletes, columns)


def decode_rows(source: Any, metadata: Any, groups: Sequence[int] | None = None) -> Any:
    """Returns the rows of a file, or of these row groups; text that repeats stays dictionary-encoded, and takes little
    memory."""
    repeated = [name for name in metadata.schema.names if name in REPEATED]
    parquet = pq.ParquetFile(source, metadata=metadata, read_dictionary=repeated, pre_buffer=False)
    return parquet.read(use_threads=False) if groups is None else parquet.read_row_groups(groups, use_threads=False)


def check_understood(location: str, metadata: Any, layout: ParquetLayout) -> None:
    """Raises TableUnreadable unless each column is one of the table, with its id, name and type."""
    columns = {column.field_id: column for column in layout.columns}
    for field in metadata.schema.to_arrow_schema():
        field_id = (field.metadata or {}).get(_FIELD_ID, b"")
        column = columns.get(int(field_id)) if field_id.isdigit() else None
        expected = None if column is None else column.map_type if column.type == "map" else ARROW[column.type]
        if column is None or field.name != column.name or not _is_same(field.type, expected):
            raise errors.TableUnreadable(
                f"{location}: column {field.name} ({field.type}) is not one that the pipeline writes",
                hint="the file is left as it is; compact it with the engine that wrote it",
            )


def _is_same(type_: Any, expected: Any) -> bool:
    if pa.types.is_map(expected):
        return pa.types.is_map(type_) and (type_.key_type, type_.item_type) == (expected.key_type, expected.item_type)
    return bool(type_ == expected)


# --- order and writing ------------------------------------------------------------------------------------------------


def file_parts(job: GroupJob, layout: ParquetLayout, rows: Any) -> Iterator[FilePart]:
    """Yields the rows of each file. Raises TableUnreadable for more partition values than a task may write."""
    ordered = by_offset(rows)
    if not job.repartitions:
        for part in _sized(ordered, job.target.target_bytes):
            yield FilePart(list(job.partition), part)
        return
    # Absent columns are nulls here, as in the files that are written: their partition value is null as well.
    full = layout.table({column: ordered.column(column) for column in ordered.column_names}, ordered.num_rows)
    grouped = group_by_partition(full, job.target.spec, {column.field_id: column.name for column in layout.columns})
    if grouped.front_rows is not None:
        raise errors.TableUnreadable(
            f"the rows of {len(job.files)} files have more than {limits.ROUND_PARTITIONS_MAX} partition values",
            hint="the files stay in their older partitioning, where queries read them as before",
        )
    for group in grouped.groups:
        of_value = ordered if group.rows is None else ordered.take(pa.array(group.rows))
        for part in _sized(of_value, job.target.target_bytes):
            yield FilePart(list(group.values), part)


def by_offset(rows: Any) -> Any:
    shard, offset = (rows.column(name).to_numpy() for name in ("shard", "offset"))
    order = np.lexsort((offset, shard))
    rows = rows.unify_dictionaries().combine_chunks()
    # Files that follow one another, of one shard, are in order as they are.
    return rows if bool((order == np.arange(len(order))).all()) else rows.take(pa.array(order))


def _sized(rows: Any, target_bytes: int) -> Iterator[Any]:
    """Yields parts that are not larger than the target even if nothing can be compressed. Fewer than that: the memory
    of a task bounds the group, and a part of a file is worth no file of its own."""
    count = max(1, rows.nbytes // max(target_bytes, 1))
    size = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def encode_group(
    job: GroupJob,
    layout: ParquetLayout,
    rows: Any,
    name: Callable[[], str],
    digest: RowDigest,
    partition: Sequence[object] | None = None,
) -> tuple[WrittenFile, Any]:
    """Encodes one file of sorted rows, with its manifest entry. `partition`: if not that of the group."""
    target = job.target
    table = layout.table({column: rows.column(column) for column in rows.column_names}, rows.num_rows)
    groups = row_groups(table, target.clustering, layout)
    footer = _footer(job, layout, digest)
    data, metrics = encode_parquet(groups.rows, layout, target.codec, target.codec_level, groups.counts, footer)
    values = job.partition if partition is None else partition
    return _entry(job, layout, _fresh_location(job, name), data.size, table, metrics, digest, values), data


def _footer(job: GroupJob, layout: ParquetLayout, digest: RowDigest) -> dict[bytes, bytes]:
    return {FOOTER_KEY: digest.text.encode(), LAYOUT_KEY: layout_id(job.target.clustering, layout).encode()}


def _fresh_location(job: GroupJob, name: Callable[[], str]) -> str:
    return f"{job.target.location.rstrip('/')}/{data_name(job.target.epoch, name())}"


def _entry(
    job: GroupJob,
    layout: ParquetLayout,
    location: str,
    size_bytes: int,
    rows: Any,
    metrics: ColumnMetrics,
    digest: RowDigest,
    partition: Sequence[object],
) -> WrittenFile:
    """The manifest entry of a file. `rows`: shard and offset of each."""
    ids = {column.name: column.field_id for column in layout.columns}
    return WrittenFile(
        job.topic_id,
        location,
        size_bytes,
        rows.num_rows,
        covered_ranges(rows, metrics, ids),
        layout.schema_id,
        job.target.spec["spec-id"],
        list(partition),
        *metrics,
        digest.text,
    )
