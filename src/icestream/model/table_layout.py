"""The layout of a topic's table as its policies state it. Pure: the broker validates the texts, the pipeline applies
them.

partitioning        none; hour, day or month (of append_time); key; bucket[N] (of key); auto: none, day or hour, by the
                    size and the growth of the table (pipeline/tables/auto_partitioning.py)
compression         a codec, and for codecs with levels one of them: zstd, zstd:9, gzip:6, snappy, lz4, uncompressed
target_file_bytes   the size of data files if there are enough messages
compaction          on: small files are merged (docs/adr/0065); off: they stay
clustering          how compaction orders the rows of a file (docs/adr/0088): offset; up to four columns, such as
                    key,publish_time; or zorder(key,publish_time)
mqtt_columns        on: columns for MQTT topics, and files clustered by them (docs/adr/0061); off: none
"""

from __future__ import annotations

import re
import reprlib
from enum import StrEnum
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model import envelope

OF_TIME: Final = ("hour", "day", "month")
AUTO: Final = "auto"
_BUCKET: Final = re.compile(r"bucket\[([1-9][0-9]{0,5})\]", re.ASCII)
_LEVEL: Final = re.compile(r"[1-9][0-9]?", re.ASCII)
_LEVELS_MAX: Final = {"zstd": 22, "gzip": 9, "snappy": 0, "lz4": 0, "uncompressed": 0}

BY_OFFSET: Final = "offset"
CLUSTERING_COLUMNS_MAX: Final = 4
# Bounds of the other columns help no query: a payload is compared with nothing, and headers have no bounds.
_NOT_CLUSTERED: Final = (envelope.PAYLOAD, envelope.HEADERS, envelope.WIRE)
CLUSTERING_COLUMNS: Final = frozenset(
    (
        "append_time",
        "stream",
        *(f"level_{number}" for number in range(1, limits.MQTT_LEVEL_COLUMNS + 1)),
        *(column.name for column in envelope.COLUMNS if column.in_table and column not in _NOT_CLUSTERED),
    )
)
_ZORDER: Final = re.compile(r"zorder\(([a-z0-9_,]+)\)", re.ASCII)
_CLUSTERING_HINT: Final = (
    "clustering is offset, one to four columns such as key,publish_time, or zorder(key,publish_time)"
)

PARTITIONING_HINT: Final = "partitioning is one of none, auto, hour, day, month, key, bucket[16]"
_COMPRESSION_HINT: Final = (
    "compression is one of zstd, gzip, snappy, lz4, uncompressed; zstd:1 to zstd:22 and gzip:1 to gzip:9 name a level"
)


def is_bucket(partitioning: str) -> bool:
    return _BUCKET.fullmatch(partitioning) is not None


def check_partitioning(text: str) -> None:
    if text not in ("none", "key", AUTO, *OF_TIME) and not is_bucket(text):
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


class Clustering(NamedTuple):
    """The order of rows within the parts of a file."""

    columns: tuple[str, ...]  # BY_OFFSET alone: by shard and offset
    is_zorder: bool = False


def parse_clustering(text: str) -> Clustering | None:
    """Returns the order that a policy states; None for an empty text. Raises InvalidInput."""
    if not text:
        return None
    zorder = _ZORDER.fullmatch(text)
    columns = tuple((zorder[1] if zorder else text).split(","))
    if columns == (BY_OFFSET,) and not zorder:
        return Clustering(columns)
    is_valid = len(set(columns)) == len(columns) <= CLUSTERING_COLUMNS_MAX and CLUSTERING_COLUMNS.issuperset(columns)
    if not is_valid or (zorder and len(columns) < 2):
        raise errors.InvalidInput(f"{reprlib.repr(text)} is not a clustering", hint=_CLUSTERING_HINT)
    return Clustering(columns, zorder is not None)


def codec_and_level(text: str) -> tuple[str, str]:
    """Splits a compression into codec and level; either may be empty."""
    codec, _, level = text.partition(":")
    return codec, level
