"""A round without Spark: bytes of the log in, Parquet files out, and what goes wrong as data."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from icestream import limits
from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block
from icestream.model.row_digest import FOOTER_KEY
from icestream.model.task_messages import CoveredRange, TaskErrorKind, TopicTaskResult
from icestream.pipeline.files import file_store
from icestream.pipeline.round_judgement import OffsetClaim, judge_round
from icestream.pipeline.round_plan import RoundPlan
from icestream.readers.row_hashes import digest_of
from icestream.wal.format import RecordSection, SectionKind
from tests.support.pipeline_round import (
    LogInFolder,
    all_rows,
    field_id,
    rows_in,
    spec_of,
    target_in,
    write_here,
)

HOUR_US = 3_600_000_000


def body(*payloads: bytes, **options: Any) -> bytes:
    columns = {
        envelope.PAYLOAD: list(payloads),
        envelope.PRODUCER_NAME: ConstantColumn("somebody"),
        envelope.HEADERS: ConstantColumn({"color": "blue"}),
        **options.get("columns", {}),
    }
    return encode_block(len(payloads), columns, options.get("numbering"))


@pytest.fixture
def log(tmp_path: Path) -> LogInFolder:
    (tmp_path / "wal").mkdir()
    return LogInFolder(tmp_path / "wal")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def filled(log: LogInFolder, records: int = 12, topics: int = 3, per_file: int = 5) -> LogInFolder:
    for number in range(records):
        if number % per_file == 0:
            log.new_file()
        payloads = [b"%d-%d" % (number, row) * 20 for row in range(4)]
        log.append(*((topic, number % 2, body(*payloads)) for topic in range(1, topics + 1)), time_us=number * 1000)
    log.save()
    return log


def checked(log: LogInFolder, plan: RoundPlan, written: list[TopicTaskResult]) -> None:
    """Everything is there, once."""
    for judged in judge_round(plan, written):
        assert judged.errors == []
        assert [(claim.shard, claim.start, claim.end) for claim in judged.claims] == [
            (shard, 0, end) for (topic, shard), end in sorted(log.ends.items()) if topic == judged.topic.topic_id
        ]
        assert all_rows(judged.files) == log.expected(judged.topic.topic_id)


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_a_round_writes_every_row_into_its_table(
    log: LogInFolder, tables: Path, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.limits.ROUND_TASK_BYTES_MIN", 1000)
    plan = filled(log).plan(tables, tasks)
    assert plan.bundles == tasks
    written = write_here(plan)
    checked(log, plan, written)
    assert len([file for result in written for file in result.files]) == 3  # gathered: one for each topic


def test_large_topics_are_written_where_they_are_read(
    log: LogInFolder, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icestream.limits.ROUND_TASK_BYTES_MIN", 1000)
    monkeypatch.setattr("icestream.limits.ROUND_GATHER_BYTES_MAX", 0)
    plan = filled(log).plan(tables, tasks=2)
    assert plan.writers == 0
    written = write_here(plan)
    checked(log, plan, written)
    assert len([file for result in written for file in result.files]) == 6


def test_a_file_has_correct_statistics(log: LogInFolder, tables: Path) -> None:
    first = body(b"one", b"two", columns={envelope.KEY: [b"b" * 40, b"a"], envelope.REQUEST_ID: [7, None]})
    log.append((1, 0, first), time_us=-5)
    log.append(
        (1, 1, body(b"three", columns={envelope.RETAIN: ConstantColumn(True)}, numbering=Numbering(9, 1, 4))), time_us=9
    )
    log.save()
    (written,) = write_here(log.plan(tables))
    (file,) = written.files
    path = Path(file.location.removeprefix("file:"))
    assert path.parent == tables / "t1" / "data"
    assert file.size_bytes == path.stat().st_size
    assert (file.rows, file.schema_id, file.spec_id, file.partition) == (3, 3, 0, [])
    assert file.covered == written.covered == [CoveredRange(0, 0, 2), CoveredRange(1, 0, 1)]
    assert rows_in(file) == log.expected(1)

    def bounds(name: str) -> tuple[bytes | None, bytes | None]:
        return file.lower_bounds.get(field_id(name)), file.upper_bounds.get(field_id(name))

    assert bounds("offset") == (struct.pack("<q", 0), struct.pack("<q", 1))
    assert bounds("shard") == (struct.pack("<i", 0), struct.pack("<i", 1))
    assert bounds("append_time") == (struct.pack("<q", -5), struct.pack("<q", 9))
    assert bounds("key") == (b"a", b"b" * 15 + b"c")
    assert bounds("producer_name") == (b"somebody", b"somebody")
    assert bounds("request_id") == (struct.pack("<q", 7),) * 2
    assert bounds("retain") == (b"\x01", b"\x01")
    assert bounds("producer_id") == (struct.pack("<q", 9),) * 2
    assert bounds("payload") == bounds("wire") == (None, None)
    nulls = {name: file.null_counts[field_id(name)] for name in ("key", "request_id", "wire", "offset", "retain")}
    assert nulls == {"key": 1, "request_id": 2, "wire": 3, "offset": 0, "retain": 2}
    assert set(file.value_counts.values()) == {3}
    parquet = pq.ParquetFile(path)
    group = parquet.metadata.row_group(0)
    assert file.split_offsets == [4]
    sizes = {group.column(at).path_in_schema: group.column(at).total_compressed_size for at in range(group.num_columns)}
    assert file.column_sizes[field_id("payload")] == sizes["payload"]
    assert sum(file.column_sizes.values()) == sum(sizes.values())


def test_files_are_in_the_order_and_the_encodings_of_the_contract(log: LogInFolder, tables: Path) -> None:
    log.append((1, 0, body(*(b"x" * 100 for _ in range(100)))))
    log.save()
    (written,) = write_here(log.plan(tables))
    metadata = pq.ParquetFile(written.files[0].location.removeprefix("file:")).metadata
    group = metadata.row_group(0)
    chunks = [group.column(at) for at in range(group.num_columns)]
    assert [chunk.path_in_schema for chunk in chunks] == [
        "shard", "offset", "append_time", "payload", "headers.key_value.key", "headers.key_value.value",
        "producer_name",
    ]  # fmt: skip
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    for chunk in chunks[:3]:
        assert "DELTA_BINARY_PACKED" in chunk.encodings
    assert "RLE_DICTIONARY" in chunks[-1].encodings
    assert "RLE_DICTIONARY" not in chunks[3].encodings
    fields = pq.ParquetFile(written.files[0].location.removeprefix("file:")).schema_arrow
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in fields}
    assert ids == {name: field_id(name) for name in ids}
    headers = next(field["type"] for field in new_schema()["fields"] if field["name"] == "headers")
    assert int(fields.field("headers").type.key_field.metadata[b"PARQUET:field_id"]) == headers["key-id"]
    assert int(fields.field("headers").type.item_field.metadata[b"PARQUET:field_id"]) == headers["value-id"]
    assert not fields.field("offset").nullable


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "lz4", "uncompressed"])
def test_codecs(log: LogInFolder, tables: Path, codec: str) -> None:
    filled(log, topics=1)
    (written,) = write_here(log.plan(tables, targets={1: target_in(tables, codec=codec)}))
    assert all_rows(written.files) == log.expected(1)
    metadata = pq.ParquetFile(written.files[0].location.removeprefix("file:")).metadata
    assert metadata.row_group(0).column(0).compression.lower().startswith(codec.removesuffix("_raw"))


def test_a_file_says_the_digest_of_the_rows_that_the_log_had(log: LogInFolder, tables: Path) -> None:
    """Hazard 83: computed before the file is encoded, and the same when its rows are read back."""
    log.append((1, 0, body(b"a", b"b")), (1, 1, body(b"c")))
    log.save()
    files = [file for result in write_here(log.plan(tables)) for file in result.files]
    assert files
    for file in files:
        location = file.location.removeprefix("file:")
        footer = pq.read_metadata(location).metadata
        assert footer[FOOTER_KEY].decode() == file.row_digest
        assert digest_of(pq.read_table(location)).text == file.row_digest


def test_a_file_never_spans_two_partition_values(log: LogInFolder, tables: Path) -> None:
    """A backlog of six hours, and keys in buckets (hazard 12)."""
    for hour in range(6):
        keys = [b"k%d" % (row % 5) for row in range(20)]
        log.append((1, 0, body(*keys, columns={envelope.KEY: keys})), time_us=hour * HOUR_US + HOUR_US // 2)
    log.save()
    spec = spec_of(("append_time", "hour"), ("key", "bucket[3]"))
    plan = log.plan(tables, targets={1: target_in(tables, spec)})
    (written,) = write_here(plan)
    checked(log, plan, [written])
    seen: dict[tuple[Any, ...], set[tuple[int, bytes]]] = {}
    for file in written.files:
        rows = rows_in(file)
        seen[tuple(file.partition)] = {(row["append_time"] // HOUR_US, row["key"]) for row in rows}
        assert {row["append_time"] // HOUR_US for row in rows} == {file.partition[0]}
        assert file.spec_id == 1
    assert len(seen) == len(written.files)
    assert {hour for hour, _ in seen} == set(range(6))
    keys_by_bucket: dict[Any, set[bytes]] = {}
    for (_, bucket), shard_keys in seen.items():
        keys_by_bucket.setdefault(bucket, set()).update(key for _, key in shard_keys)
    assert sum(map(len, keys_by_bucket.values())) == 5


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "truncate[1]"])
def test_messages_without_a_key_have_a_partition_of_their_own(log: LogInFolder, tables: Path, transform: str) -> None:
    log.append((1, 0, body(b"a", b"b", b"c", columns={envelope.KEY: [b"x", None, b"x"]})))
    log.append((2, 0, body(b"a", b"b")))
    log.save()
    spec = spec_of(("key", transform))
    written = write_here(log.plan(tables, targets={1: target_in(tables, spec), 2: target_in(tables, spec)}))
    keys_by_file = [frozenset(row.get("key") for row in rows_in(file)) for file in written[0].files]
    assert set(keys_by_file) == {frozenset({b"x"}), frozenset({None})}
    assert len(keys_by_file) == 2
    assert {file.partition[0] is None: file.rows for file in written[0].files} == {True: 1, False: 2}
    assert [file.partition for file in written[1].files] == [[None]]


def test_with_too_many_partition_values_the_first_are_written_and_the_rest_follows(
    log: LogInFolder, tables: Path
) -> None:
    keys = [b"%d" % row for row in range(1001)]
    log.append((1, 0, body(*keys, columns={envelope.KEY: keys})), (2, 0, body(b"x")))
    log.save()
    targets = {1: target_in(tables, spec_of(("key", "identity")))}
    plan = log.plan(tables, targets=targets)
    first_topic, two = judge_round(plan, write_here(plan))
    assert (first_topic.claims, first_topic.errors, first_topic.is_cut) == ([OffsetClaim(0, 1, 0, 1000)], [], True)
    assert sorted(row["offset"] for file in first_topic.files for row in rows_in(file)) == list(range(1000))
    assert (two.errors, two.is_cut) == ([], False)
    plan = log.plan(tables, targets=targets, next_offsets={(1, 0): 1000, (2, 0): 1})
    (rest,) = judge_round(plan, write_here(plan))
    assert (rest.claims, rest.errors, rest.is_cut) == ([OffsetClaim(0, 1, 1000, 1001)], [], False)


def test_shards_alternate_when_there_are_too_many_partition_values(
    log: LogInFolder, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shard waits until another one has no new keys; later records, damaged or not, are not reached yet."""
    monkeypatch.setattr(limits, "ROUND_PARTITIONS_MAX", 10)
    for shard in (0, 1):
        keys = [b"%d-%d" % (shard, row // 2) for row in range(40)]
        log.append((1, shard, body(*keys, columns={envelope.KEY: keys})))
    log.append((1, 1, body(b"x")))
    log.save()
    damage(log, 0, log.files[0].end - 5)
    targets = {1: target_in(tables, spec_of(("key", "identity")))}
    next_offsets: dict[tuple[int, int], int] = {}
    for end in (10, 20, 30, 40):
        plan = log.plan(tables, targets=targets, next_offsets=next_offsets)
        (judgement,) = judge_round(plan, write_here(plan))
        next_offsets = {(1, claim.shard): claim.end for claim in judgement.claims}
        assert next_offsets == {(1, 0): end, (1, 1): end}
        assert judgement.is_cut == (end < 40)
        assert [error.trouble for error in judgement.errors] == ([] if judgement.is_cut else [TaskErrorKind.DAMAGED])
        assert sum(file.rows for file in judgement.files) == 20


def test_large_topics_become_files_of_the_target_size(log: LogInFolder, tables: Path) -> None:
    for _ in range(10):
        log.append((1, 0, body(*(os.urandom(1000) for _ in range(100)))))
    log.save()
    plan = log.plan(tables, targets={1: target_in(tables, target_bytes=250_000)})
    (written,) = write_here(plan)
    checked(log, plan, [written])
    assert 4 <= len(written.files) <= 6
    assert all(file.size_bytes <= 250_000 for file in written.files)
    spans = sorted((file.covered[0].start, file.covered[0].end) for file in written.files)
    assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]


def damage(log: LogInFolder, file: int, position: int) -> None:
    path = log.path(log.files[file])
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_section_costs_its_topic_and_no_other(log: LogInFolder, tables: Path) -> None:
    filled(log, records=4, topics=2)
    position, _ = log.files[0].marks[2]
    damage(log, 0, position + 64 + 2 * 64 + 40)  # the body of the first section
    plan = log.plan(tables)
    first, second = judge_round(plan, write_here(plan))
    assert second.is_complete
    assert first.errors[0].trouble is TaskErrorKind.DAMAGED
    assert first.claims == [OffsetClaim(0, 1, 0, 4), OffsetClaim(1, 1, 0, 8)]
    assert all_rows(first.files) == [row for row in log.expected(1) if row["offset"] < 4 or row["shard"] == 1]


def test_a_damaged_header_ends_a_range_for_all(log: LogInFolder, tables: Path) -> None:
    filled(log, records=4, topics=2)
    damage(log, 0, log.files[0].marks[1][0] + 20)
    plan = log.plan(tables)
    for judged in judge_round(plan, write_here(plan)):
        assert judged.claims == [OffsetClaim(0, 1, 0, 4)]
        assert judged.errors[0].trouble is TaskErrorKind.DAMAGED


def test_a_file_that_was_used_again_is_stale_not_damaged(log: LogInFolder, tables: Path) -> None:
    plan = filled(log, records=4, topics=1).plan(tables)
    path = log.path(log.files[0])
    log.files[0].generation = 99
    log.save()
    path.write_bytes((log.folder / "log-0000000000000099.wal").read_bytes())
    for judged in judge_round(plan, write_here(plan)):
        assert not judged.claims
        assert judged.errors[0].trouble is TaskErrorKind.STALE


@pytest.mark.parametrize("break_it", [lambda path: path.unlink(), lambda path: os.truncate(path, 5000)])
def test_a_missing_or_short_file_is_stale(log: LogInFolder, tables: Path, break_it: Any) -> None:
    plan = filled(log, records=12, topics=1).plan(tables)
    break_it(log.path(log.files[1]))
    (judged,) = judge_round(plan, write_here(plan))
    assert judged.errors[0].trouble in (TaskErrorKind.STALE, TaskErrorKind.UNREACHABLE)
    assert all_rows(judged.files) == [row for row in log.expected(1) if row["append_time"] < 5000]


def test_unreadable_blocks_fail_only_their_topic(log: LogInFolder, tables: Path) -> None:
    good = body(b"a", b"b")
    log.append((1, 0, good), (2, 0, good))
    bad = bytearray(good)
    struct.pack_into("<I", bad, 0, 1)  # rows
    log.files[0].rows[1] += [{"shard": 0, "offset": 2}, {"shard": 0, "offset": 3}]
    log.files[0].add([RecordSection(1, 0, SectionKind.MESSAGES, 0, 1, 2, 0, 2, 0, bytes(bad))])
    log.ends[1, 0] = 4
    log.save()
    plan = log.plan(tables)
    first, second = judge_round(plan, write_here(plan))
    assert second.is_complete
    assert not first.claims
    assert first.errors[0].trouble is TaskErrorKind.FAILED


def test_a_hole_ends_a_topic(log: LogInFolder, tables: Path) -> None:
    filled(log, records=2, topics=1)
    log.ends[1, 0] += 10
    log.append((1, 0, body(b"behind the hole")))
    log.save()
    plan = log.plan(tables)
    (judged,) = judge_round(plan, write_here(plan))
    assert judged.claims == [OffsetClaim(0, 1, 0, 4), OffsetClaim(1, 1, 0, 4)]
    assert "do not follow" in judged.errors[0].message
    log.gaps[1, 0] = [(4, 14)]
    plan = log.plan(tables)
    (judged,) = judge_round(plan, write_here(plan))
    assert judged.is_complete
    assert judged.claims == [OffsetClaim(0, 1, 0, 15), OffsetClaim(1, 1, 0, 4)]


def test_an_unwritable_table_fails_only_its_topic(log: LogInFolder, tables: Path) -> None:
    filled(log, topics=3)
    tables.mkdir()
    (tables / "t1").write_text("in the way")
    required = msgspec.structs.replace(target_in(tables / "t2"), schema=_with_required("wire"))
    first, second, third = write_here(log.plan(tables, targets={2: required}))
    assert first.error is not None
    assert first.error.trouble is TaskErrorKind.UNREACHABLE
    assert second.error is not None
    assert "wire" in second.error.message
    assert first.files == first.covered == second.files == second.covered == []
    assert third.error is None


def _with_required(name: str) -> dict[str, Any]:
    schema = new_schema()
    return {"fields": [{**field, "required": field["required"] or field["name"] == name} for field in schema["fields"]]}


def test_files_are_created_exclusively_and_synced_with_their_folder(
    log: LogInFolder, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log, topics=3)
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        real(number)

    monkeypatch.setattr(file_store.os, "fsync", fsync)
    written = write_here(log.plan(tables))
    files = [file.location.removeprefix("file:") for result in written for file in result.files]
    assert len(set(files)) == 3
    for path in files:
        assert synced.count(path) == 1
        assert synced.index(path) < len(synced) - 1 - synced[::-1].index(str(Path(path).parent))
        assert str(tables) in synced  # the folder of a new folder
    store = file_store.FolderStore()
    store.put(f"file:{files[0]}", b"other bytes")
    assert "exists" in store.settle()[f"file:{files[0]}"]
    assert Path(files[0]).read_bytes() != b"other bytes"


def test_hazard_11_a_folder_created_by_a_killed_task_is_synced_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder exists, but its parent was never synced. One sync is enough."""
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        real(number)

    monkeypatch.setattr(file_store.os, "fsync", fsync)
    (tmp_path / "t" / "data").mkdir(parents=True)
    for number in (1, 2):
        store = file_store.FolderStore()
        store.put(f"file:{tmp_path}/t/data/{number}.parquet", b"rows")
        assert store.settle() == {}
    assert synced.count(str(tmp_path / "t")) == 1
    assert synced.count(str(tmp_path / "t" / "data")) == 2


def test_many_files_share_a_sync_of_their_disk(log: LogInFolder, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync follows the last file, and no file is reported before it."""
    monkeypatch.setattr(limits, "FILES_SYNCED_APART_MAX", 2)
    filled(log, topics=5)
    happened: list[str] = []
    real_open, real_sync = os.open, file_store.sync_disk

    def opened(path: Any, flags: int, *more: int) -> int:
        if str(path).endswith(".parquet"):
            happened.append("file")
        return real_open(path, flags, *more)

    def synced(number: int) -> None:
        happened.append("sync")
        real_sync(number)

    monkeypatch.setattr(file_store.os, "open", opened)
    monkeypatch.setattr(file_store, "sync_disk", synced)
    written = write_here(log.plan(tables))
    assert (len(written), happened) == (5, ["file"] * 5 + ["sync"])
    assert [result.error for result in written] == [None] * 5


def test_a_disk_that_cannot_be_synced_withholds_every_file(
    log: LogInFolder, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILES_SYNCED_APART_MAX", 2)
    filled(log, topics=5)

    def failing(number: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_store, "sync_disk", failing)
    written = write_here(log.plan(tables))
    assert [(result.files, result.error is None) for result in written] == [([], False)] * 5
