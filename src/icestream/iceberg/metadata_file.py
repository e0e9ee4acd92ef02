"""Metadata files: their names, and their bytes.

    {location}/metadata/{version}-{UUID}.metadata.json        written once, never changed

`write.metadata.path` puts them elsewhere, `write.metadata.compression-codec` = gzip makes them `.gz.metadata.json`. The
UUID makes the name of each attempt its own: who finds a name in a table's history knows who wrote it. Those of this
catalog are of version 8, those of other catalogs of version 4 and others: what is not ours is never tidied up.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from icestream import errors, limits
from icestream.iceberg.location import check_inside
from icestream.iceberg.values import short_repr

PATH: Final = "write.metadata.path"
# Where data lies that is not below the table's location; what the last two name is older than the first.
DATA_PATHS: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
CODEC: Final = "write.metadata.compression-codec"
_WRITE_BYTES_MIN: Final = 32 * limits.KIB
_VERSION: Final = re.compile(r"(?:v|0*)(\d{1,9})(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_OURS: Final = re.compile(
    r"\d{5,9}-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json"
)
_GZIPPED: Final = re.compile(r".*(?:\.gz\.metadata\.json|\.metadata\.json\.gz)")


def data_places(location: str, properties: Mapping[str, str]) -> list[str]:
    """A name in each directory below which engines write files of a table; each may be on a disk of its own."""
    given = [properties[name].rstrip("/") for name in DATA_PATHS if properties.get(name)]
    return [f"{place}/file" for place in (location, f"{location}/data", directory(location, properties), *given)]


def check_places(properties: Mapping[str, str], roots: Sequence[str]) -> None:
    """Raises InvalidInput for paths outside of the roots: the catalog could not make durable what lies there."""
    for name in (PATH, *DATA_PATHS):
        if path := properties.get(name):
            check_inside(path, roots)


def directory(location: str, properties: Mapping[str, str]) -> str:
    return properties.get(PATH) or f"{location}/metadata"


def is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None


def own_uuid(token: bytes) -> str:
    """A UUID of version 8 from 16 bytes of chance."""
    made = bytearray(token)
    made[6], made[8] = made[6] & 0x0F | 0x80, made[8] & 0x3F | 0x80
    text = made.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_name(version: int, uuid: str, properties: Mapping[str, str]) -> str:
    codec = properties.get(CODEC, "none").lower()
    if codec not in ("none", "gzip"):
        raise errors.InvalidInput(f"Invalid codec name: {short_repr(codec)}", hint=f"{CODEC} is none or gzip")
    return f"{version:05d}-{uuid}{'.gz' if codec == 'gzip' else ''}.metadata.json"


def version_of(file_location: str) -> int:
    """The number in the name of a file, also of other catalogs; 0 when it has none."""
    found = _VERSION.fullmatch(file_location.rsplit("/", 1)[-1])
    return int(found[1]) if found else 0


def is_gzipped(file_location: str) -> bool:
    return _GZIPPED.fullmatch(file_location) is not None


def compress(file_location: str, pieces: Sequence[bytes]) -> Sequence[bytes]:
    """What is written under this name."""
    size = sum(map(len, pieces))
    if size > limits.CATALOG_DOCUMENT_BYTES_MAX:
        raise errors.InvalidInput(
            f"a metadata file of {size} bytes, at most {limits.CATALOG_DOCUMENT_BYTES_MAX} fit",
            hint="expire snapshots",
        )
    return [gzip.compress(b"".join(pieces), 6, mtime=0)] if is_gzipped(file_location) else _gathered(pieces)


def _gathered(pieces: Sequence[bytes]) -> list[bytes]:
    """Small ones together: each is a write of its own."""
    made: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < _WRITE_BYTES_MIN:
            small.append(piece)
        else:
            made += (b"".join(small), piece)
            small = []
    return [piece for piece in (*made, b"".join(small)) if piece]


def decompress(file_location: str, data: bytes) -> bytes:
    """What a file of this name says. A small one that unpacks to a huge one is refused."""
    if not is_gzipped(file_location):
        return data
    most = limits.CATALOG_DOCUMENT_BYTES_MAX
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        found = unzip.decompress(data, most + 1)
    except zlib.error as error:
        raise errors.MetadataFileDamaged(f"{file_location} is not packed as its name says: {error}") from None
    if len(found) > most or not unzip.eof:
        raise errors.MetadataFileDamaged(f"{file_location} is cut off, or has more than {most} bytes")
    return found
