"""The table of a topic as the driver knows it: its metadata, its manifests, and its next offsets.

This is the state after the last load or after our own last commit. Other engines may have committed since: then the
next commit conflicts, and the table is reloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import limits
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifests import ManifestFile
from icestream.iceberg.table_metadata import TableMetadata


class Position(NamedTuple):
    """The next offset of a shard, and the epoch under which it is written."""

    epoch: int
    next: int  # the first offset that is not in the table


class StopReason(NamedTuple):
    """Why a topic is halted (hazard 21), with a hint about what to do."""

    reason: str
    hint: str = ""


def unexpected_stop(error: Exception) -> StopReason:
    """The reason of a topic whose table met a programming error: the other topics go on."""
    text = f"{type(error).__name__}: {error}"[: limits.JOB_ERROR_CHARACTERS_MAX]
    return StopReason(f"unexpected failure: {text}", "its traceback is in the pipeline's log; please report it")


@dataclass
class TopicTable:
    """One table in the memory of the driver."""

    topic_id: int
    topic: str
    identifier: Identifier
    table: TableMetadata
    positions: dict[int, Position]
    manifests: list[ManifestFile] | None = None  # of the current snapshot, the newest first; None: not loaded
    is_stale: bool = False  # it must be reloaded before anything is planned
    # The policy that its metadata was evolved to. Reloading resets it: others may have changed the table, or refused
    # our change.
    policy: Mapping[str, str] = field(default_factory=dict)
    history_ms: int = 0  # how long its topic keeps messages; 0: for ever, or not known yet
    has_mqtt: bool = False  # its topic has MQTT messages now: tasks derive columns for them

    @property
    def next_offsets(self) -> dict[int, int]:
        """The first offset of each shard that is not in the table."""
        return {shard: position.next for shard, position in self.positions.items()}

    def advanced(self, ends: Mapping[int, int]) -> dict[int, Position]:
        """Returns the positions after a commit of everything below `ends`, by shard; it changes nothing here."""
        return self.positions | {shard: self.positions[shard]._replace(next=end) for shard, end in ends.items()}
