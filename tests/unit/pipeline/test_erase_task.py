"""The task of an erasure on files of any writer: what it finds, and what it leaves to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.catalog.topic_rules import topic_schema
from icestream.model.pipeline_file_name import data_name
from icestream.model.row_digest import FOOTER_KEY
from icestream.pipeline.compaction.group_messages import GroupJob, InputFile
from icestream.pipeline.erasure.erase_task import search_file
from icestream.pipeline.erasure.search_messages import SearchJob, SearchResult, decode_found, encode
from icestream.pipeline.round_plan import TableTarget
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.readers.row_hashes import digest_of

SCHEMA = topic_schema.new_schema()
IDS = {field["name"]: field["id"] for field in SCHEMA["fields"]}


def write(path: Path, names: dict[str, str] | None = None, *, has_ids: bool = True) -> None:
    """Three rows, of which two have the key alice. `names`: how the file calls columns."""
    columns: dict[str, Any] = {
        "shard": pa.array([0, 0, 0], pa.int32()),
        "offset": pa.array([5, 6, 7], pa.int64()),
        "key": pa.array([b"alice", b"bob", b"alice"], pa.binary()),
    }
    fields = [
        pa.field(
            (names or {}).get(name, name), array.type, True, {"PARQUET:field_id": str(IDS[name])} if has_ids else None
        )
        for name, array in columns.items()
    ]
    pq.write_table(pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields)), path, row_group_size=2)


def search(path: Path, where: str, **more: Any) -> SearchResult:
    target = TableTarget(f"file:{path.parent}", SCHEMA, {"spec-id": 0, "fields": []})
    group = GroupJob(0, 1, target, [], [InputFile(f"file:{path}", 3)])
    job = SearchJob(0, group, where, **{"is_live": False, **more})
    return decode_found(search_file(encode(job), open_store, fresh_name))


@pytest.mark.parametrize("has_ids", [True, False])
def test_rows_are_found_in_every_row_group(tmp_path: Path, has_ids: bool) -> None:
    write(tmp_path / "a.parquet", has_ids=has_ids)
    assert search(tmp_path / "a.parquet", "key = 'alice'") == SearchResult(0, 2, is_foreign=True)
    assert search(tmp_path / "a.parquet", "key = 'carol'") == SearchResult(0, is_foreign=True)
    assert search(tmp_path / "a.parquet", "header 'user' = 'alice'") == SearchResult(0, is_foreign=True)


def test_a_column_is_found_by_its_field_id(tmp_path: Path) -> None:
    """Its name in the file is that of a day before it was renamed."""
    write(tmp_path / "a.parquet", {"key": "customer", "offset": "at"})
    assert search(tmp_path / "a.parquet", "key = 'alice' and offset = 7") == SearchResult(0, 1, is_foreign=True)


def test_a_file_is_of_the_pipeline_by_its_name_or_by_the_digest_in_it(tmp_path: Path) -> None:
    """A restore copies the digest with the file; an engine writes none."""
    own, restored = tmp_path / data_name(3, "0" * 32), tmp_path / "restored.parquet"
    write(own)
    assert not search(own, "key = 'alice'").is_foreign
    rows = pq.read_table(own)
    pq.write_table(rows.replace_schema_metadata({FOOTER_KEY: digest_of(rows).text.encode()}), restored)
    assert not search(restored, "key = 'alice'").is_foreign


def test_a_delete_by_value_is_searched_by_what_it_names(tmp_path: Path) -> None:
    """Offsets alone contain no values of messages."""
    path = tmp_path / "deletes.parquet"
    write(path)
    assert search(path, "key = 'alice'", is_delete=True, cut={0: 1_000}).matched == 2
    assert search(path, "offset = 5", is_delete=True).matched == 0


def test_rows_beyond_the_cut_are_newer(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    assert search(tmp_path / "a.parquet", "key = 'alice'", cut={0: 7}) == SearchResult(0, 1, 1, is_foreign=True)


def test_a_file_that_is_gone_has_nothing(tmp_path: Path) -> None:
    assert search(tmp_path / "a.parquet", "key = 'alice'").is_gone


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"])
def test_a_file_that_cannot_be_read_is_a_reason_without_values(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    result = search(tmp_path / "a.parquet", "key = 'alice'")
    assert "a.parquet" in result.reason
    assert "alice" not in result.reason


def test_a_live_file_of_another_writer_is_not_written_again(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"key": "customer"})
    result = search(tmp_path / "a.parquet", "key = 'alice'", is_live=True, is_written_again=True)
    assert "is not one that the pipeline writes" in result.reason
    assert result.files == []
