"""The input and the output of a task of an erasure (erase_task.py), encoded as bytes: Spark carries them between
processes. The driver imports this module, and neither numpy nor pyarrow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream.model.row_digest import RowDigest
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.compaction.group_messages import GroupJob


class SearchJob(msgspec.Struct, frozen=True):
    """One data file to search. `group` has it alone, with the deletes that apply to it."""

    number: int
    group: GroupJob
    where: str
    is_written_again: bool = False  # without the rows that match
    is_live: bool = True  # in the current snapshot: its deletes are applied to what is counted
    is_delete: bool = False  # a file of deletes by value, which has values of rows that it deletes
    cut: dict[int, int] = {}  # rows at or above it are counted apart; empty: no cut


class SearchResult(msgspec.Struct, frozen=True):
    """What a file has. With `reason` it could not be searched, or not be written again."""

    number: int
    matched: int = 0  # rows, also deleted ones
    newer: int = 0  # rows that match at or above the cut
    live: int = 0  # rows that match and are not deleted
    is_gone: bool = False  # the file does not exist any more
    is_foreign: bool = False  # no digest of the pipeline is in it: an engine wrote it, or wrote it again
    reason: str = ""
    # Of a file that was written again:
    erased: dict[int, list[tuple[int, int]]] = {}  # ranges of offsets
    files: list[WrittenFile] = []
    replaced_rows: str = RowDigest().text
    deleted_rows: str = RowDigest().text
    erased_rows: str = RowDigest().text
    added_rows: str = RowDigest().text


encode = msgspec.msgpack.encode
decode_search: Final = msgspec.msgpack.Decoder(SearchJob).decode
decode_found: Final = msgspec.msgpack.Decoder(SearchResult).decode
