"""Files of another writer that are written again keep what that writer gave them."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from icestream import errors
from icestream.iceberg import avro
from icestream.iceberg.manifests import read_manifest_file

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "number", "type": "long", "field-id": 1},
        {"name": "of_a_later_format", "type": ["null", "string"], "default": None, "field-id": 900},
    ],
}
RECORDS = [{"number": number, "of_a_later_format": "kept"} for number in range(3)]


def file_of_another_writer() -> bytes:
    encoded = io.BytesIO()
    fastavro.writer(encoded, SCHEMA, RECORDS, codec="null", metadata={"format-version": "3"})
    return encoded.getvalue()


def test_unknown_fields_and_the_header_survive() -> None:
    file = avro.read_file(file_of_another_writer())
    assert file.records == RECORDS
    rewritten = avro.read_file(file.with_records(file.records[1:]))
    assert rewritten == (RECORDS[1:], file.schema, {"format-version": "3"})
    assert rewritten.schema["fields"][1]["field-id"] == 900


def test_the_same_marker_gives_the_same_bytes() -> None:
    file = avro.read_file(file_of_another_writer())
    first, second = (file.with_records(RECORDS, b"m" * 16) for _ in range(2))
    assert first == second
    assert file.with_records(RECORDS, b"n" * 16) != first


@pytest.mark.parametrize("data", [b"", b"Obj\x01", file_of_another_writer()[:-20]])
def test_other_bytes_are_a_damaged_file(data: bytes) -> None:
    with pytest.raises(errors.MetadataFileDamaged, match=r"file:/m\.avro is not an Avro file"):
        read_manifest_file("file:/m.avro", data)
