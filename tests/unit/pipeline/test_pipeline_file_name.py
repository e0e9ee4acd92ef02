"""Names of files tell ours from others', and under which epoch they were written."""

from __future__ import annotations

import pytest

from icestream.model.pipeline_file_name import (
    PipelineFileKind,
    data_name,
    erased_name,
    list_name,
    manifest_name,
    parse_pipeline_file,
)
from icestream.pipeline.task.task_run import fresh_name

UUID, CHANCE = "785a77d4-bcc1-47dd-898a-d046df2e754e", "9c7352772086810f15dfab74034cef7b"


def test_a_file_name_contains_kind_and_epoch() -> None:
    assert parse_pipeline_file(f"s3://b/t/data/{data_name(7, fresh_name())}") == (PipelineFileKind.DATA, 7)
    assert parse_pipeline_file(f"file:/w/t/metadata/{manifest_name(12, UUID, 3)}") == (PipelineFileKind.MANIFEST, 12)
    assert parse_pipeline_file(list_name(2**62, 1, UUID)) == (PipelineFileKind.LIST, 1)
    assert parse_pipeline_file(f"metadata/{erased_name(9, CHANCE)}") == (PipelineFileKind.ERASED, 9)


@pytest.mark.parametrize(
    "name",
    [
        f"{CHANCE}.parquet",
        f"icestream-{UUID}-m0.avro",
        f"snap-1-1-{UUID}.avro",
        f"snap-1-{UUID}.avro",
        f"icestream-x-{CHANCE}.parquet",
        f"{data_name(1, CHANCE)}.crc",
        f"00000-0-{UUID}.parquet",
        f"data_file/{data_name(1, CHANCE)}/part-0",
        "",
    ],
)
def test_foreign_file_names_are_not_recognised(name: str) -> None:
    assert parse_pipeline_file(name) is None
