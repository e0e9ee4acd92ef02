"""The layout of a topic's table as its policies state it. Pure: the broker validates the texts, the pipeline applies
them.

partitioning        none; hour, day or month (of append_time); key; bucket[N] (of key)
compression         a codec, and for codecs with levels one of them: zstd, zstd:9, gzip:6, snappy, lz4, uncompressed
target_file_bytes   the size of data files if there are enough messages
compaction          on: small files are merged (docs/adr/0065); off: they stay
mqtt_columns        on: columns for MQTT topics, and files clustered by them (docs/adr/0061); off: none
"""

from __future__ import annotations

import re
import reprlib
from enum import StrEnum
from typing import Final

from icestream import errors, limits

OF_TIME: Final = ("hour", "day", "month")
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
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not a partitioning", hint=PARTITIONING_HINT)


def check_compression(text: str) -> None:
    codec, colon, level = text.partition(":")
    highest = _LEVELS_MAX.get(codec)
    has_such = highest is not None and (not colon or (_LEVEL.fullmatch(level) and int(level) <= highest))
    if not has_such:
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not a compression", hint=_COMPRESSION_HINT)


def check_target_file_bytes(size: int) -> None:
    if not limits.TARGET_FILE_BYTES_MIN <= size <= limits.TARGET_FILE_BYTES_MAX:
        raise errors.InvalidInput(
            f"target_file_bytes {size} is out of range",
            hint=f"{limits.TARGET_FILE_BYTES_MIN} to {limits.TARGET_FILE_BYTES_MAX} are allowed",
        )


class MqttColumnsPolicy(StrEnum):
    ON = "on"
    OFF = "off"


def check_mqtt_columns(text: str) -> None:
    if text not in list(MqttColumnsPolicy):
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not a value of mqtt_columns", hint="on or off")


class CompactionPolicy(StrEnum):
    ON = "on"
    OFF = "off"


def check_compaction(text: str) -> None:
    if text not in list(CompactionPolicy):
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not a value of compaction", hint="on or off")


def codec_and_level(text: str) -> tuple[str, str]:
    """Splits a compression into codec and level; either may be empty."""
    codec, _, level = text.partition(":")
    return codec, level
