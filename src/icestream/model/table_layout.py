"""How the table of a topic is laid out, in the words of its policies. Pure: the broker judges them, the pipeline obeys.

partitioning        none; hour, day or month (of append_time); key; bucket[N] (of key)
compression         a codec, and where it has levels one of them: zstd, zstd:9, gzip:6, snappy, lz4, uncompressed
target_file_bytes   how large data files become where there is enough
"""

from __future__ import annotations

import re
import reprlib
from typing import Final

from icestream import errors, limits

OF_TIME: Final = ("hour", "day", "month")
NAMES: Final = ("partitioning", "compression", "target_file_bytes")
_BUCKET: Final = re.compile(r"bucket\[([1-9][0-9]{0,5})\]", re.ASCII)
_LEVEL: Final = re.compile(r"[1-9][0-9]?", re.ASCII)
_LEVELS_MAX: Final = {"zstd": 22, "gzip": 9, "snappy": 0, "lz4": 0, "uncompressed": 0}

PARTITIONING_HINT: Final = "partitioning is one of none, hour, day, month, key, bucket[16]"
_COMPRESSION_HINT: Final = (
    "compression is one of zstd, gzip, snappy, lz4, uncompressed; zstd:1 to zstd:22 and gzip:1 to gzip:9 name a level"
)


def is_bucket(partitioning: str) -> bool:
    return _BUCKET.fullmatch(partitioning) is not None


def check_partitioning(text: str) -> None:
    if text not in ("none", "key", *OF_TIME) and not is_bucket(text):
        raise errors.InvalidInput(f"{reprlib.repr(text)} is no partitioning", hint=PARTITIONING_HINT)


def check_compression(text: str) -> None:
    codec, colon, level = text.partition(":")
    highest = _LEVELS_MAX.get(codec)
    has_such = highest is not None and (not colon or (_LEVEL.fullmatch(level) and int(level) <= highest))
    if not has_such:
        raise errors.InvalidInput(f"{reprlib.repr(text)} is no compression", hint=_COMPRESSION_HINT)


def check_target_file_bytes(size: int) -> None:
    if not limits.TARGET_FILE_BYTES_MIN <= size <= limits.TARGET_FILE_BYTES_MAX:
        raise errors.InvalidInput(
            f"target_file_bytes {size}",
            hint=f"{limits.TARGET_FILE_BYTES_MIN} to {limits.TARGET_FILE_BYTES_MAX} are allowed",
        )


def codec_and_level(text: str) -> tuple[str, str]:
    """Each may be empty."""
    codec, _, level = text.partition(":")
    return codec, level
