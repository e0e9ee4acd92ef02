"""Names of the files that the pipeline writes: unique by a random token, with the epoch of their pipeline.

    data/icestream-{epoch}-{token}.parquet
    metadata/icestream-{epoch}-{uuid}-m{number}.avro               a manifest
    metadata/snap-{snapshot id}-icestream-{epoch}-{uuid}.avro      a manifest list
    metadata/icestream-{epoch}-{token}.erased                      the side file of erased offsets (erased_offsets.py)

So the name of a file in a folder says whether a commit can still bring it into the table: the clean-up removes files of
lower epochs (pipeline/file_cleanup/removal_rule.py), and a rewrite is committed under the epoch of its files alone;
no file of another engine is taken for one of ours, and readers tell rows of the pipeline from inserted ones
(readers/scanner.py).
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple

PREFIX: Final = "icestream-"
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class PipelineFileKind(Enum):
    DATA = auto()
    MANIFEST = auto()
    LIST = auto()
    ERASED = auto()


class PipelineFile(NamedTuple):
    kind: PipelineFileKind
    epoch: int


_FORMS: Final = {
    PipelineFileKind.DATA: re.compile(r"icestream-([0-9]{1,18})-[0-9a-f]{32}\.parquet"),
    PipelineFileKind.MANIFEST: re.compile(rf"icestream-([0-9]{{1,18}})-{_UUID}-m[0-9]+\.avro"),
    PipelineFileKind.LIST: re.compile(rf"snap-[0-9]+-icestream-([0-9]{{1,18}})-{_UUID}\.avro"),
    PipelineFileKind.ERASED: re.compile(r"icestream-([0-9]{1,18})-[0-9a-f]{32}\.erased"),
}


def data_name(epoch: int, token: str) -> str:
    """`token`: 32 random hexadecimal digits."""
    return f"{PREFIX}{epoch}-{token}.parquet"


def manifest_name(epoch: int, uuid: str, number: int) -> str:
    return f"{PREFIX}{epoch}-{uuid}-m{number}.avro"


def list_name(snapshot_id: int, epoch: int, uuid: str) -> str:
    return f"snap-{snapshot_id}-{PREFIX}{epoch}-{uuid}.avro"


def erased_name(epoch: int, token: str) -> str:
    """`token`: 32 random hexadecimal digits."""
    return f"{PREFIX}{epoch}-{token}.erased"


def is_data_file(location: str) -> bool:
    """Whether the pipeline has written this data file."""
    file = parse_pipeline_file(location)
    return file is not None and file.kind is PipelineFileKind.DATA


def parse_pipeline_file(location: str) -> PipelineFile | None:
    """Kind and epoch of a file that the pipeline wrote; None if another engine or an earlier release wrote it."""
    name = location.rpartition("/")[2]
    for kind, form in _FORMS.items():
        if (match := form.fullmatch(name)) is not None:
            return PipelineFile(kind, int(match[1]))
    return None
