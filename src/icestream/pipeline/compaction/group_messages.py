"""The input and the output of a task of a compaction (group_rewrite.py), encoded as bytes: Spark carries them between
processes. The driver imports this module, and neither numpy nor pyarrow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import limits
from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.round_plan import TableTarget


class DeleteInput(msgspec.Struct, frozen=True, array_like=True):
    """A delete file, as its manifest describes it (readers/data_files.py)."""

    path: str
    format: str
    content: int
    rows: int
    size_bytes: int
    equality_ids: list[int]
    blob: tuple[int, int]


class InputFile(msgspec.Struct, frozen=True, array_like=True):
    location: str
    rows: int
    deletes: list[int] = []  # numbers in the deletes of the group


class GroupJob(msgspec.Struct, frozen=True):
    """The files of a group, all of one partition, and the table for which they are rewritten. `repartitions`: the files
    are of an older partition spec, and their rows are divided by the values of the present one."""

    number: int
    topic_id: int
    target: TableTarget
    partition: list[object]
    files: list[InputFile]
    deletes: list[DeleteInput] = []
    memory_bytes: int = limits.COMPACTION_TASK_BYTES  # of decoded rows
    repartitions: bool = False


class GroupResult(msgspec.Struct, frozen=True):
    """What became of a group. Without replaced files nothing is to be committed, and `reason` says why."""

    number: int
    replaced: list[str] = []  # the first files of the group: the others did not fit
    files: list[WrittenFile] = []
    replaced_rows: str = RowDigest().text
    added_rows: str = RowDigest().text  # as read back
    deleted_rows: str = RowDigest().text  # of the replaced files: what delete files delete
    reason: str = ""
    read_bytes: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0  # the highest of the process so far


encode = msgspec.msgpack.encode
decode_result: Final = msgspec.msgpack.Decoder(GroupResult).decode
decode_job: Final = msgspec.msgpack.Decoder(GroupJob).decode
