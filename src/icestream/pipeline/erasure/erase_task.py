"""The task of an erasure: searches one data file, and writes it again without the rows that match.

    search   the columns of the predicate alone, of any Parquet file: a column that it does not have is null
    again    as a compaction does (group_rewrite.py): the file is understood, has the rows of its digest, deletes are
             applied, the output is read back. What is left out is summed, too: replaced rows = added + deleted + erased

A task is a function of bytes and raises nothing for bad data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from icestream import errors
from icestream.model.erased_offsets import Range, ranges_of
from icestream.model.erasure_predicate import Predicate, fields_of, parse_predicate
from icestream.model.pipeline_file_name import is_data_file
from icestream.pipeline.compaction.group_rewrite import (
    OpenStore,
    by_offset,
    check_understood,
    decode_rows,
    deletes_of,
    encode_group,
    footer_digest,
    has_other_rows,
    read_back,
    row_deletes_in,
)
from icestream.pipeline.erasure.predicate_mask import predicate_mask
from icestream.pipeline.erasure.search_messages import SearchJob, SearchResult, decode_search, encode
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.parquet_layout import layout_of
from icestream.readers.row_deletes import split_deleted
from icestream.readers.row_hashes import digest_of

_FIELD_ID: Final = b"PARQUET:field_id"
_POSITION: Final = frozenset(("shard", "offset"))


def search_file(data: bytes, open_store: OpenStore, name: Callable[[], str]) -> bytes:
    """Searches one file. Returns a SearchResult as bytes; an error becomes its reason."""
    job = decode_search(data)
    try:
        result = _search(job, open_store, name)
    except (FileNotFoundError, errors.MetadataFileMissing):
        result = SearchResult(job.number, is_gone=True)
    except errors.IcestreamError as error:
        result = SearchResult(job.number, reason=error.message)
    except Exception as error:  # noqa: BLE001  # one file must not affect the others
        # Without the text of the error: Arrow's has values of rows in it.
        result = SearchResult(job.number, reason=f"{job.group.files[0].location}: {type(error).__name__}")
    return encode(result)


def _search(job: SearchJob, open_store: OpenStore, name: Callable[[], str]) -> SearchResult:
    store, (file,) = open_store(job.group.target), job.group.files
    predicate = parse_predicate(job.where)
    data = store.read(file.location)
    with pa.BufferReader(data) as source:
        matched, newer = _count(source, predicate, job)
        result = SearchResult(job.number, matched, newer, is_foreign=_is_foreign(source, file.location))
        if not job.is_live or not (matched or job.is_written_again):
            return result
        return _split(job, store, source, predicate, result, name)


def _is_foreign(source: Any, location: str) -> bool:
    """Whether an engine wrote a file: its rows may have any offsets, and to erase these could hide other messages. The
    pipeline names its files, or leaves the digest of their rows in them, as in those that a restore has copied."""
    source.seek(0)
    return not is_data_file(location) and footer_digest(pq.read_metadata(source)) is None


def _count(source: Any, predicate: Predicate, job: SearchJob) -> tuple[int, int]:
    """How many rows match: below the cut, and at or above it. Row groups one by one: a file may be large."""
    matched = newer = 0
    with pq.ParquetFile(source, pre_buffer=False) as parquet:
        stored = _stored_names(parquet.schema_arrow, job)
        compared = {field.column for field in fields_of(predicate)}
        if job.is_delete and not (compared - _POSITION) & stored.keys():
            return 0, 0  # rows are named by other columns, not by offsets
        names = (compared | _POSITION) & stored.keys()
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=[stored[name] for name in sorted(names)], use_threads=False)
            rows = rows.select([stored[name] for name in sorted(names)]).rename_columns(sorted(names))
            mask = predicate_mask(rows, predicate)
            matching = rows.filter(mask)
            beyond = _beyond(matching, job.cut)
            matched += len(matching) - beyond
            newer += beyond
    return matched, newer


def _stored_names(schema: Any, job: SearchJob) -> dict[str, str]:
    """How the file names each column of the table: by field ids, as Iceberg does, so that a column which was renamed
    since is found; by its name in a file without ids."""
    names = {field["id"]: field["name"] for field in job.group.target.schema["fields"]}
    stored: dict[str, str] = {}
    for field in schema:
        field_id = (field.metadata or {}).get(_FIELD_ID, b"")
        name = names.get(int(field_id)) if field_id.isdigit() else field.name
        if name is not None:
            stored[name] = field.name
    return stored


def _beyond(rows: Any, cut: dict[int, int]) -> int:
    if not cut or not len(rows) or not {*rows.column_names} >= _POSITION:
        return 0
    shards, offsets = (rows.column(name).to_numpy() for name in ("shard", "offset"))
    return sum(int(np.count_nonzero((shards == shard) & (offsets >= end))) for shard, end in cut.items())


def _split(
    job: SearchJob, store: FileStore, source: Any, predicate: Predicate, result: SearchResult, name: Callable[[], str]
) -> SearchResult:
    """Splits the rows of a live file into those that are erased and those that stay."""
    group, (file,) = job.group, job.group.files
    layout = layout_of(group.target)
    source.seek(0)
    metadata = pq.read_metadata(source)
    decoded_bytes = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if decoded_bytes > group.memory_bytes:
        raise errors.TableUnreadable(
            f"{file.location} decodes to {decoded_bytes} bytes, more than an erasure holds in memory",
            hint="compact the table with an engine, into smaller files",
        )
    check_understood(file.location, metadata, layout)
    rows = decode_rows(source, metadata)
    digest = digest_of(rows)
    if digest.rows != file.rows or footer_digest(metadata) not in (None, digest):
        raise has_other_rows(file.location)
    live, deleted = split_deleted(rows, deletes_of(group, file, row_deletes_in(store), layout))
    mask = predicate_mask(live, predicate)
    erased, kept = live.filter(mask), live.filter(pc.invert(mask))
    counts = msgspec.structs.replace(result, live=len(erased))
    if not job.is_written_again:
        return counts
    files = []
    if kept.num_rows:
        written, content = encode_group(group, layout, by_offset(kept), name, digest_of(kept))
        store.put(written.location, content)
        files.append(written)
    if failures := store.settle():
        raise errors.StorageUnavailable(next(iter(failures.values())), hint="the erasure is tried again")
    added = read_back(store, files[0].location).digest if files else digest_of(kept)
    return SearchResult(
        counts.number,
        counts.matched,
        counts.newer,
        counts.live,
        erased=_ranges(erased),
        files=files,
        replaced_rows=digest.text,
        deleted_rows=digest_of(deleted).text,
        erased_rows=digest_of(erased).text,
        added_rows=added.text,
    )


def _ranges(rows: Any) -> dict[int, list[Range]]:
    shards, offsets = (rows.column(name).to_numpy() for name in ("shard", "offset"))
    return {int(shard): ranges_of(offsets[shards == shard].tolist()) for shard in np.unique(shards)}
