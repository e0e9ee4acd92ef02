"""Avro object container files, as manifests and manifest lists are stored: encoding and decoding. Pure.

    "Obj" 1 | metadata map | sync marker (16 bytes) | blocks: record count, byte count, deflated records, sync marker

Writing is done by hand because each commit writes two of these files per table. fastavro takes about three times as
long: it derives the schema again for every file. Here the header is encoded once per schema, records arrive encoded,
and an encoded record is copied from file to file when manifests are merged. Reading uses fastavro, because files of
other engines may use any schema evolution and codec that Avro permits. A file of another writer that is to keep its own
schema, with fields that we do not know, is written by fastavro too (`AvroFile.with_records`).
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

Record = dict[str, Any]

_MAGIC: Final = b"Obj\x01"
# The fastest level: the files are small, and most of a manifest is paths and bounds that hardly repeat.
_DEFLATE_LEVEL: Final = 1


def encode_long(value: int) -> bytes:
    """Encodes an int or long: zigzag, then seven bits per byte, the lowest first."""
    if 0 <= value < len(_SMALL_LONGS):
        return _SMALL_LONGS[value]
    return _encode_zigzag(value)


def _encode_zigzag(value: int) -> bytes:
    rest = value << 1 ^ value >> 63
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# Most numbers of a manifest (lengths, counts, field ids) are small: a table lookup is several times as fast.
_SMALL_LONGS: Final = [_encode_zigzag(value) for value in range(1_024)]


def decode_long(data: bytes, position: int) -> tuple[int, int]:
    """Returns the number encoded at this position, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def encode_optional_long(value: int | None) -> bytes:
    """Encodes a value of the union [null, long]."""
    return b"\x00" if value is None else b"\x02" + encode_long(value)


def encode_bytes(data: bytes) -> bytes:
    """Encodes a value of type bytes or string."""
    return encode_long(len(data)) + data


def encode_header(metadata: Mapping[str, bytes]) -> bytes:
    """Encodes the file header up to the sync marker. `metadata` must contain `avro.schema`."""
    pairs = {**metadata, "avro.codec": b"deflate"}
    body = b"".join(encode_bytes(key.encode()) + encode_bytes(value) for key, value in pairs.items())
    return _MAGIC + encode_long(len(pairs)) + body + b"\x00"


def encode_file(header: bytes, records: Sequence[bytes], sync_marker: bytes) -> list[bytes]:
    """Encodes a file of one block as a list of byte strings to be written one after the other."""
    if not records:
        return [header, sync_marker]
    compressor = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = compressor.compress(b"".join(records)) + compressor.flush()
    return [header, sync_marker, encode_long(len(records)), encode_long(len(block)), block, sync_marker]


def decode_file(data: bytes) -> Iterator[Record]:
    """Yields the records of a file of any writer. fastavro raises exceptions of any class for invalid bytes."""
    import fastavro  # loaded with the first file: the broker process never reads one

    return iter(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]


class AvroFile(NamedTuple):
    """A decoded file of any writer, with what is needed to write other records as that writer did."""

    records: list[Record]
    schema: Any  # as JSON
    header: dict[str, str]  # the metadata, without the keys of Avro itself

    def with_records(self, records: Sequence[Mapping[str, Any]], sync_marker: bytes = b"") -> bytes:
        """Encodes records by the schema and the header of this file. `sync_marker`: 16 bytes; empty for random ones."""
        import fastavro

        encoded = io.BytesIO()
        fastavro.writer(encoded, self.schema, records, codec="deflate", metadata=self.header, sync_marker=sync_marker)
        return encoded.getvalue()


def read_file(data: bytes) -> AvroFile:
    """Decodes a file of any writer. fastavro raises exceptions of any class for invalid bytes."""
    import fastavro

    reader: Any = fastavro.reader(io.BytesIO(data))
    header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    return AvroFile(list(reader), json.loads(reader.metadata["avro.schema"]), header)
