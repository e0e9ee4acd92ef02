"""The task of a compaction on files of ingest: rows that a mistake changes are never reported as the same rows, and
files whose chunks were copied are what encoding them anew would have made."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.catalog.topic_rules import topic_schema
from icestream.model.row_digest import FOOTER_KEY, parse_digest, sum_of
from icestream.pipeline.compaction import copied_chunks, group_rewrite
from icestream.pipeline.compaction.group_messages import GroupJob, GroupResult, InputFile, decode_result, encode
from icestream.pipeline.files import data_file
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.files.parquet_footer import encode_footer, read_footer
from icestream.pipeline.files.topic_files import write_topic
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.readers.row_hashes import digest_of
from tests.support.hypothesis_effort import QUARTER

ROWS, FILES = 300, 4


def target_of(folder: Path, **options: Any) -> TableTarget:
    return TableTarget(f"file:{folder}/data", topic_schema.new_schema(), {"spec-id": 0, "fields": []}, **options)


def rows_of(first: int, count: int, chance: random.Random) -> TopicRows:
    times = pa.array(range(first, first + count), pa.timestamp("us", tz="UTC"))
    columns = {
        "shard": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(first, first + count), pa.int64()),
        "publish_time": times,
        "append_time": times,
        "key": pa.array([chance.choice((None, b"a", b"b" * 20)) for _ in range(count)], pa.binary()),
        "payload": pa.array([chance.randbytes(chance.randrange(60)) for _ in range(count)], pa.binary()),
        "producer_name": pa.array([chance.choice(("p", "q")) for _ in range(count)]).dictionary_encode(),
    }
    return TopicRows(1, columns, count)


def ingested(folder: Path, parts: list[TopicRows], **options: Any) -> list[InputFile]:
    """A file of ingest for each of these."""
    store = FolderStore()
    written = [write_topic([part], target_of(folder, **options), store, fresh_name).files for part in parts]
    assert not store.settle()
    return [InputFile(file.location, file.rows) for files in written for file in files]


def neighbours(folder: Path, **options: Any) -> list[InputFile]:
    chance = random.Random(3)
    return ingested(folder, [rows_of(number * ROWS, ROWS, chance) for number in range(FILES)], **options)


def rewrite(folder: Path, inputs: list[InputFile], **options: Any) -> GroupResult:
    job = GroupJob(0, 1, target_of(folder, **options), [], inputs)
    return decode_result(group_rewrite.rewrite_group(encode(job), open_store, fresh_name))


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file:"))


def footer_of(location: str) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = pq.read_metadata(path_of(location)).metadata
    return metadata


def test_a_file_states_the_digest_that_its_rows_have(tmp_path: Path) -> None:
    inputs = neighbours(tmp_path)
    result = rewrite(tmp_path, inputs)
    (file,) = result.files
    digest = digest_of(pq.read_table(path_of(file.location)))
    assert result.reason == ""
    assert digest == sum_of(parse_digest(footer_of(source.location)[FOOTER_KEY].decode()) for source in inputs)
    assert footer_of(file.location)[FOOTER_KEY].decode() == digest.text
    assert (file.rows, file.row_digest, result.added_rows, result.replaced_rows) == (digest.rows, *[digest.text] * 3)


def null_keys(rows: Any) -> Any:
    place = rows.schema.get_field_index("key")
    return rows.set_column(place, rows.schema.field(place), pa.nulls(rows.num_rows, pa.binary()))


def swap_payloads(rows: Any) -> Any:
    place = rows.schema.get_field_index("payload")
    payloads = rows.column(place).to_pylist()
    payloads[0], payloads[1] = payloads[1], payloads[0]
    return rows.set_column(place, rows.schema.field(place), pa.array(payloads, pa.binary()))


MISTAKES = {
    "drops a row": lambda rows: rows.slice(1),
    "doubles a row": lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
    "one row for another": lambda rows: pa.concat_tables([rows.slice(0, 1), rows.slice(0, rows.num_rows - 1)]),
    "swaps payloads": swap_payloads,
    "a column of nulls": null_keys,
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("reads", [range(1), range(FILES, FILES + 1), range(100)], ids=["input", "output", "every"])
def test_a_decoder_that_is_wrong_reports_no_equal_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Any], Any], reads: range
) -> None:
    """Hazard 83: also one that misreads inputs and outputs alike."""
    inputs = neighbours(tmp_path)
    decode, calls = group_rewrite.decode_rows, iter(range(1000))

    def wrong(source: Any, metadata: Any) -> Any:
        rows = decode(source, metadata)
        return mistake(rows) if next(calls) in reads else rows

    monkeypatch.setattr(group_rewrite, "decode_rows", wrong)
    result = rewrite(tmp_path, inputs)
    assert result.reason or result.added_rows != result.replaced_rows


def test_the_file_that_does_not_have_its_rows_is_named(tmp_path: Path) -> None:
    inputs = neighbours(tmp_path)
    victim = path_of(inputs[2].location)
    rows, digest = pq.read_table(victim), footer_of(inputs[2].location)[FOOTER_KEY]
    victim.unlink()
    with pq.ParquetWriter(victim, rows.schema, store_schema=False) as writer:
        writer.write_table(swap_payloads(rows))
        writer.add_key_value_metadata({FOOTER_KEY: digest})
    result = rewrite(tmp_path, inputs)
    assert inputs[2].location in result.reason
    assert not result.files


@pytest.mark.parametrize("least", [0, 2**60], ids=["copied", "encoded"])
def test_a_task_takes_what_fits_its_memory_and_says_what_it_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    monkeypatch.setattr(limits, "COPIED_CHUNK_BYTES_MIN", least)
    inputs = neighbours(tmp_path)
    metadata = pq.read_metadata(path_of(inputs[0].location))
    file_bytes = metadata.row_group(0).total_byte_size + 96 * ROWS
    results = []
    for memory_bytes in (3 * file_bytes, file_bytes):
        job = GroupJob(0, 1, target_of(tmp_path), [], inputs, memory_bytes=memory_bytes)
        results.append(decode_result(group_rewrite.rewrite_group(encode(job), open_store, fresh_name)))
    some, none = results
    assert 2 <= len(some.replaced) < FILES
    assert some.replaced == [file.location for file in inputs[: len(some.replaced)]]
    assert none.reason == "too few of its files fit the memory of a task"
    assert min(some.memory_bytes, none.memory_bytes) > 0


# --- chunks that are copied -------------------------------------------------------------------------------------------


def random_rows(shard: int, first: int, count: int, chance: random.Random) -> TopicRows:
    """Rows with columns that may be absent, null, empty, or repeat themselves."""
    base = chance.randrange(10**6)
    columns: dict[str, Any] = {
        "shard": pa.array([shard] * count, pa.int32()),
        "offset": pa.array([first + at + at // 7 for at in range(count)], pa.int64()),
        "append_time": pa.array([base + at for at in range(count)], pa.timestamp("us", tz="UTC")),
        "payload": pa.array([chance.choice((b"", chance.randbytes(40))) for _ in range(count)], pa.binary()),
    }
    optional = {
        "key": pa.array([chance.choice((None, b"k", chance.randbytes(9))) for _ in range(count)], pa.binary()),
        "producer_name": pa.array([chance.choice(("p", None)) for _ in range(count)], pa.utf8()).dictionary_encode(),
        "sequence": pa.array([chance.choice((None, chance.randrange(-5, 5))) for _ in range(count)], pa.int64()),
        "retain": pa.array([chance.choice((None, True, False)) for _ in range(count)], pa.bool_()),
        "headers": pa.array(
            [chance.choice((None, [], [("a", "1"), ("b", None)])) for _ in range(count)], pa.map_(pa.utf8(), pa.utf8())
        ),
    }
    return TopicRows(1, columns | {name: array for name, array in optional.items() if chance.random() < 0.7}, count)


def both_ways(folder: Path, inputs: list[InputFile], row_group_rows: int) -> list[GroupResult]:
    """The result with chunks copied whatever their size, and with none."""
    results = []
    for least in (0, 2**60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "COPIED_CHUNK_BYTES_MIN", least)
            for module in (data_file, copied_chunks):
                patch.setattr(module, "ROW_GROUP_ROWS", row_group_rows)
            results.append(rewrite(folder, inputs))
    return results


def has_copied(result: GroupResult, inputs: list[InputFile]) -> bool:
    """Whether the payloads of the first file are in the output, as they were stored."""
    metadata = pq.read_metadata(path_of(inputs[0].location))
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    chunk = metadata.row_group(0).column(paths.index("payload"))
    data = path_of(inputs[0].location).read_bytes()
    stored = data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size]
    return stored in path_of(result.files[0].location).read_bytes()


@QUARTER
@given(st.randoms(use_true_random=False), st.integers(2, 6), st.sampled_from((3, 50, 1_000)), st.booleans())
def test_copied_files_are_what_encoding_would_have_made(
    tmp_path_factory: pytest.TempPathFactory,
    chance: random.Random,
    files: int,
    row_group_rows: int,
    has_shards: bool,
) -> None:
    folder = tmp_path_factory.mktemp("copied")
    parts, ends = [], [0, 0]
    for number in range(files):
        shard, count = number % 2 if has_shards else 0, chance.randrange(1, 40)
        parts.append(random_rows(shard, ends[shard], count, chance))
        ends[shard] += 2 * count
    inputs = ingested(folder, parts)
    copied, encoded = both_ways(folder, inputs, row_group_rows)
    assert (copied.reason, encoded.reason) == ("", "")
    assert copied.added_rows == copied.replaced_rows == encoded.added_rows
    (file,), (expected,) = copied.files, encoded.files
    assert has_copied(copied, inputs)
    for name in ("rows", "covered", "value_counts", "null_counts", "lower_bounds", "upper_bounds", "row_digest"):
        assert getattr(file, name) == getattr(expected, name), name
    path, expected_path = path_of(file.location), path_of(expected.location)
    assert file.size_bytes == path.stat().st_size
    assert pq.read_table(path).equals(pq.read_table(expected_path))
    metadata = pq.read_metadata(path)
    assert metadata.schema.equals(pq.read_metadata(expected_path).schema)
    assert metadata.metadata == pq.read_metadata(expected_path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.column(0).data_page_offset for group in groups] == file.split_offsets
    assert all(group.column(0).statistics.min == group.column(0).statistics.max for group in groups)


def test_another_reader_finds_the_rows_of_a_copied_file(tmp_path: Path) -> None:
    chance = random.Random(11)
    inputs = ingested(tmp_path, [random_rows(0, 100 * number, 40, chance) for number in range(FILES)])
    copied, encoded = both_ways(tmp_path, inputs, 50)
    query = "SELECT * REPLACE (epoch_us(append_time) AS append_time) FROM read_parquet('{}') ORDER BY shard, \"offset\""
    with duckdb.connect() as connection:
        rows, expected = (
            connection.execute(query.format(path_of(result.files[0].location))).fetchall()
            for result in (copied, encoded)
        )
    assert len(rows) == 40 * FILES
    assert rows == expected


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are copied however small they are."""
    monkeypatch.setattr(limits, "COPIED_CHUNK_BYTES_MIN", 0)


@pytest.mark.usefixtures("_small_chunks")
def test_what_was_copied_is_copied_again(tmp_path: Path) -> None:
    inputs = neighbours(tmp_path)
    halves = [rewrite(tmp_path, some).files[0] for some in (inputs[:2], inputs[2:])]
    result = rewrite(tmp_path, [InputFile(file.location, file.rows) for file in halves])
    assert has_copied(result, inputs)
    assert result.added_rows == sum_of(parse_digest(file.row_digest) for file in halves).text


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"codec": "snappy"}, {}),
        ({}, {"codec_level": 3}),
        ({}, {"clustering": "key"}),
        ({}, {"target_bytes": 100}),
    ],
    ids=["codec", "level", "order", "size"],
)
def test_files_that_are_not_as_they_should_be_are_encoded(
    tmp_path: Path, written: dict[str, Any], wanted: dict[str, Any]
) -> None:
    inputs = neighbours(tmp_path, **written)
    result = rewrite(tmp_path, inputs, **wanted)
    assert result.reason in ("", "it would be as many files as before")
    assert not result.files or not has_copied(result, inputs)


@pytest.mark.usefixtures("_small_chunks")
def test_rows_that_are_not_in_order_are_put_in_order(tmp_path: Path) -> None:
    """The bounds of the files follow one another; the rows within one of them do not."""
    chance = random.Random(5)
    parts = [rows_of(0, ROWS, chance), rows_of(ROWS, ROWS, chance)]
    mixed = pa.table(parts[1].columns).take(pa.array(range(ROWS)[::-1]))
    parts[1] = TopicRows(1, {name: mixed.column(name) for name in mixed.column_names}, ROWS)
    inputs = ingested(tmp_path, parts)
    result = rewrite(tmp_path, inputs)
    rows = pq.read_table(path_of(result.files[0].location))
    assert rows["offset"].to_pylist() == list(range(2 * ROWS))
    assert not has_copied(result, inputs)


@pytest.mark.usefixtures("_small_chunks")
def test_files_whose_offsets_overlap_are_put_in_order(tmp_path: Path) -> None:
    chance = random.Random(5)
    even, odd = rows_of(0, ROWS, chance), rows_of(0, ROWS, chance)
    even.columns["offset"] = pa.array(range(0, 2 * ROWS, 2), pa.int64())
    odd.columns["offset"] = pa.array(range(1, 2 * ROWS, 2), pa.int64())
    result = rewrite(tmp_path, ingested(tmp_path, [even, odd]))
    assert pq.read_table(path_of(result.files[0].location))["offset"].to_pylist() == list(range(2 * ROWS))


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("at", range(0, 100, 7))
def test_damaged_pages_are_not_passed_on(tmp_path: Path, at: int) -> None:
    """At some place of the payloads: nothing decodes them before they are read back."""
    inputs = neighbours(tmp_path, codec="uncompressed")
    victim = path_of(inputs[1].location)
    chunk = pq.read_metadata(victim).row_group(0).column(5)
    assert chunk.path_in_schema == "payload"
    data = bytearray(victim.read_bytes())
    data[chunk.data_page_offset + at * chunk.total_compressed_size // 100] ^= 16
    victim.write_bytes(data)
    result = rewrite(tmp_path, inputs, codec="uncompressed")
    assert result.reason or result.added_rows != result.replaced_rows
    assert "does not have the rows" not in result.reason or str(victim) in result.reason


def test_a_footer_is_written_as_it_was_read(tmp_path: Path) -> None:
    for file in neighbours(tmp_path):
        data = path_of(file.location).read_bytes()
        end = encode_footer(read_footer(data))
        assert data.endswith(end)


def test_a_file_may_have_more_pieces_than_one_call_takes(tmp_path: Path) -> None:
    pieces = [bytes([number % 251]) * (number % 3) for number in range(5_000)]
    store = FolderStore()
    store.put(f"file:{tmp_path}/folder/pieces", *pieces)
    assert not store.settle()
    assert (tmp_path / "folder" / "pieces").read_bytes() == b"".join(pieces)
