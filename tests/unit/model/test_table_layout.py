"""The words of a table's layout: what counts, and what is refused with what is allowed."""

from __future__ import annotations

import pytest

from icestream import errors, limits
from icestream.model.topic_policies import PolicyValues

MIN, MAX = limits.TARGET_FILE_BYTES_MIN, limits.TARGET_FILE_BYTES_MAX


@pytest.mark.parametrize(
    "text", ["none", "auto", "hour", "day", "month", "key", "bucket[1]", "bucket[16]", "bucket[999999]"]
)
def test_partitions(text: str) -> None:
    assert PolicyValues(partitioning=text).table_layout == {"partitioning": text}


@pytest.mark.parametrize(
    "text",
    ["", "week", "Day", "bucket", "bucket[0]", "bucket[-1]", "bucket[1000000]", "bucket[٣]", "day ", "x" * 10**6],
)
def test_invalid_partitionings_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        PolicyValues(partitioning=text)
    assert caught.value.hint == "partitioning is one of none, auto, hour, day, month, key, bucket[16]"
    assert len(caught.value.message) < 100


@pytest.mark.parametrize("text", ["zstd", "zstd:1", "zstd:22", "gzip", "gzip:9", "snappy", "lz4", "uncompressed"])
def test_compression(text: str) -> None:
    assert PolicyValues(compression=text).table_layout == {"compression": text}


@pytest.mark.parametrize(
    "text",
    ["", "zip", "ZSTD", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:1:1", "gzip:10", "snappy:1", "lz4:0", ":3"],
)
def test_invalid_compressions_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="is not a compression") as caught:
        PolicyValues(compression=text)
    assert "gzip, snappy, lz4, uncompressed; zstd:1 to zstd:22" in (caught.value.hint or "")


def test_size_of_files() -> None:
    assert PolicyValues(target_file_bytes=MIN).table_layout == {"target_file_bytes": str(MIN)}
    for size in (0, MIN - 1, MAX + 1):
        with pytest.raises(errors.InvalidInput) as caught:
            PolicyValues(target_file_bytes=size)
        assert caught.value.hint == f"{MIN} to {MAX} are allowed"


def test_a_topic_setting_overrides_its_namespace() -> None:
    namespace = PolicyValues(partitioning="day", compression="gzip", max_producers=3)
    assert PolicyValues(partitioning="none").over(namespace).table_layout == {
        "partitioning": "none",
        "compression": "gzip",
    }
