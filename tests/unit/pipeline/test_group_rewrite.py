"""The task of a compaction on files of ingest: rows that a mistake changes are never reported as the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.catalog.topic_rules import topic_schema
from icestream.model.row_digest import FOOTER_KEY, parse_digest, sum_of
from icestream.pipeline.compaction import group_rewrite
from icestream.pipeline.compaction.group_messages import GroupJob, GroupResult, InputFile, decode_result, encode
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.files.topic_files import write_topic
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.readers.row_hashes import digest_of

ROWS, FILES = 300, 4


def target_of(folder: Path) -> TableTarget:
    return TableTarget(f"file:{folder}/data", topic_schema.new_schema(), {"spec-id": 0, "fields": []})


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


def ingested(folder: Path, parts: list[TopicRows]) -> list[InputFile]:
    """A file of ingest for each of these."""
    store = FolderStore()
    written = [write_topic([part], target_of(folder), store, fresh_name).files for part in parts]
    assert not store.settle()
    return [InputFile(file.location, file.rows) for files in written for file in files]


def neighbours(folder: Path) -> list[InputFile]:
    chance = random.Random(3)
    return ingested(folder, [rows_of(number * ROWS, ROWS, chance) for number in range(FILES)])


def rewrite(folder: Path, inputs: list[InputFile]) -> GroupResult:
    job = GroupJob(0, 1, target_of(folder), [], inputs)
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
