"""What a document keeps beside its snapshots: statistics files and encryption keys."""

from __future__ import annotations

from icestream.iceberg import values
from icestream.iceberg.values import Object


def check_statistics(found: Object) -> None:
    """A Puffin file with statistics of one snapshot."""
    check_partition_statistics(found)
    values.long(found, "file-footer-size-in-bytes")
    for blob in values.objects(found, "blob-metadata"):
        values.text(blob, "type")
        values.long(blob, "snapshot-id")
        values.long(blob, "sequence-number")
        values.integers(blob, "fields")
        values.optional_text_map(blob, "properties")


def check_partition_statistics(found: Object) -> None:
    values.long(found, "snapshot-id")
    values.text(found, "statistics-path")
    values.long(found, "file-size-in-bytes")


def check_encryption_key(found: Object) -> None:
    values.text(found, "key-id")
    values.text(found, "encrypted-key-metadata")
    values.optional_text(found, "encrypted-by-id")
    values.optional_text_map(found, "properties")
