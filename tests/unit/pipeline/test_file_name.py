"""Names of files tell ours from others', and under which epoch they were written."""

from __future__ import annotations

import pytest

from icestream.model.file_name import Kind, data_name, list_name, manifest_name, our_file
from icestream.pipeline.task.task_run import fresh_name

UUID, CHANCE = "785a77d4-bcc1-47dd-898a-d046df2e754e", "9c7352772086810f15dfab74034cef7b"


def test_a_name_of_ours_says_its_kind_and_epoch() -> None:
    assert our_file(f"s3://b/t/data/{data_name(7, fresh_name())}") == (Kind.DATA, 7)
    assert our_file(f"file:/w/t/metadata/{manifest_name(12, UUID, 3)}") == (Kind.MANIFEST, 12)
    assert our_file(list_name(2**62, 1, UUID)) == (Kind.LIST, 1)


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
def test_names_of_others_are_not_ours(name: str) -> None:
    assert our_file(name) is None
