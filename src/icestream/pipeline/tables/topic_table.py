"""The table of a topic as the driver knows it: its document, its manifests, and how far it has come.

It is what the last look or our own last commit left. Others may have gone on since: then the next commit conflicts, and
the table is looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifests import ManifestFile
from icestream.iceberg.table_metadata import TableMetadata


class Position(NamedTuple):
    epoch: int
    next: int  # the first offset that is not in the table


class StopReason(NamedTuple):
    """Why a topic is not written any more until somebody does something (hazard 21)."""

    reason: str
    hint: str = ""


@dataclass
class TopicTable:
    topic_id: int
    topic: str
    identifier: Identifier
    table: TableMetadata
    positions: dict[int, Position]
    manifests: list[ManifestFile] | None = None  # of the current snapshot, the newest first; None: not read yet
    is_stale: bool = False  # it must be looked at again before anything is planned
    # What its document was brought in line with. A look forgets it: others may have changed the table, or refused ours.
    policy: Mapping[str, str] = field(default_factory=dict)

    @property
    def next_offsets(self) -> dict[int, int]:
        return {shard: one.next for shard, one in self.positions.items()}

    def advanced(self, ends: Mapping[int, int]) -> dict[int, Position]:
        return self.positions | {shard: self.positions[shard]._replace(next=end) for shard, end in ends.items()}
