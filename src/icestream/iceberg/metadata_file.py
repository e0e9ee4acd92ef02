"""Metadata files: their names and their bytes. Pure.

    {location}/metadata/{version}-{UUID}.metadata.json        written once, never changed

`write.metadata.path` puts them elsewhere, `write.metadata.compression-codec` = gzip makes them `.gz.metadata.json`. The
UUID makes the name of each commit attempt unique, so a name in a table's history identifies the attempt. Names of this
catalog have UUIDs of version 8, those of other catalogs version 4 and others: only our own are ever cleaned up.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from icestream import errors, limits
from icestream.iceberg.location import check_inside, is_inside, normalize_or_none
from icestream.iceberg.values import short_repr

PATH: Final = "write.metadata.path"
# Properties that place data outside of the table's location; the last two are older names of the first.
DATA_PATHS: Final = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
CODEC: Final = "write.metadata.compression-codec"
_WRITE_BYTES_MIN: Final = 32 * limits.KIB
_VERSION: Final = re.compile(r"(?:v|0*)(\d{1,9})(?:-[^/]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")
_OURS: Final = re.compile(
    r"\d{5,9}-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json"
)
_GZIPPED: Final = re.compile(r".*(?:\.gz\.metadata\.json|\.metadata\.json\.gz)")


def data_places(location: str, properties: Mapping[str, str]) -> list[str]:
    """Returns a file name in each directory below which engines write files of a table; each may be on another disk."""
    configured = [properties[name].rstrip("/") for name in DATA_PATHS if properties.get(name)]
    directories = (location, f"{location}/data", directory(location, properties), *configured)
    return [f"{place}/file" for place in directories]


def check_places(properties: Mapping[str, str], roots: Sequence[str]) -> None:
    """Raises InvalidInput for configured paths outside of the roots: the catalog could not make files there durable."""
    for name in (PATH, *DATA_PATHS):
        if path := properties.get(name):
            check_inside(path, roots)


def places_elsewhere(location: str, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the directories outside of a table's location in which its properties place files, in canonical form."""
    own = normalize_or_none(location)
    configured = {normalize_or_none(path) for name in (PATH, *DATA_PATHS) if (path := properties.get(name))}
    return tuple(
        sorted(place for place in configured if place is not None and (own is None or not is_inside(place, own)))
    )


def directory(location: str, properties: Mapping[str, str]) -> str:
    return properties.get(PATH) or f"{location}/metadata"


def is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None


def own_uuid(token: bytes) -> str:
    """Returns a UUID of version 8, the mark of this catalog, from 16 random bytes."""
    octets = bytearray(token)
    octets[6], octets[8] = octets[6] & 0x0F | 0x80, octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_name(version: int, uuid: str, properties: Mapping[str, str]) -> str:
    codec = properties.get(CODEC, "none").lower()
    if codec not in ("none", "gzip"):
        raise errors.InvalidInput(f"Invalid codec name: {short_repr(codec)}", hint=f"{CODEC} is none or gzip")
    return f"{version:05d}-{uuid}{'.gz' if codec == 'gzip' else ''}.metadata.json"


def version_of(file_location: str) -> int:
    """Returns the version number in a file name, also of other catalogs; 0 if it has none."""
    match = _VERSION.fullmatch(file_location.rsplit("/", 1)[-1])
    return int(match[1]) if match else 0


def is_gzipped(file_location: str) -> bool:
    return _GZIPPED.fullmatch(file_location) is not None


def compress(file_location: str, pieces: Sequence[bytes]) -> Sequence[bytes]:
    """Returns the bytes to be written under this name. Raises InvalidInput if they are too many."""
    size = sum(map(len, pieces))
    if size > limits.CATALOG_DOCUMENT_BYTES_MAX:
        raise errors.InvalidInput(
            f"metadata file of {size} bytes exceeds the limit of {limits.CATALOG_DOCUMENT_BYTES_MAX}",
            hint="expire snapshots",
        )
    return [gzip.compress(b"".join(pieces), 6, mtime=0)] if is_gzipped(file_location) else _join_small(pieces)


def _join_small(pieces: Sequence[bytes]) -> list[bytes]:
    """Joins small pieces, because each piece is a write of its own; large ones are not copied."""
    joined: list[bytes] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < _WRITE_BYTES_MIN:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    return [piece for piece in (*joined, b"".join(small)) if piece]


def decompress(file_location: str, data: bytes) -> bytes:
    """Returns the document in a file of this name. Raises MetadataFileDamaged, also for a small file that would
    decompress to a huge one."""
    if not is_gzipped(file_location):
        return data
    size_max = limits.CATALOG_DOCUMENT_BYTES_MAX
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        document = decompressor.decompress(data, size_max + 1)
    except zlib.error as error:
        raise errors.MetadataFileDamaged(f"{file_location} is not gzip-compressed as its name says: {error}") from None
    if len(document) > size_max or not decompressor.eof:
        raise errors.MetadataFileDamaged(f"{file_location} is truncated, or has more than {size_max} bytes")
    return document
