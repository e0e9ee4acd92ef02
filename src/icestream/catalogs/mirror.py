"""The mirror: a record in our own metadata store of a topic's table in another catalog, written after each commit
(hazard 21).

The pipeline compares it with the table before it commits again; readers find a topic's table by it, and a watch of it
notifies them of each commit. It may lag behind the table, never lead. The decisions of operators about the table are in
it, too (lake/foreign_operations.py): every write compares its revision, so that no decision is overwritten.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.catalog.topic_rules.binding import AdoptionBase
from icestream.catalog.topic_rules.removal import Removals
from icestream.metadata.entry import Entry

NEW_TABLE_HINT: Final = "`icestream lake adopt`, `bind` or `recreate` gives the topic a table again (docs/lake.md)"


class ForeignTableRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """At `catalog_keys.foreign_table_key` in the metadata store."""

    namespace: list[str]
    name: str
    uuid: str
    committed: dict[int, int]
    snapshot_id: int = 0  # the current snapshot of main at that time
    topic: str = ""
    base: AdoptionBase | None = None  # the offsets that an operator stated for a snapshot; 0: the table had none
    rows_up_to: int = -1  # the highest offset in the table when the operator stated them
    # The topic had this table, and no longer has it. `is_parted` is its name in stored records.
    is_detached: bool = msgspec.field(default=False, name="is_parted")
    rows: int = -1  # in that snapshot; -1: its summary has no count
    removals: Removals = ()  # rows below `committed` that are not in that snapshot
    # The UUID of the table of the topic that a restore replaced by this one: it gives up its name (ADR 106).
    replaced_uuid: str = ""

    def check_has_table(self, topic: str) -> None:
        """Raises TopicTableConflict for a detached table: the pipeline must not create another one by itself."""
        if self.is_detached:
            name = ".".join((*self.namespace, self.name))
            raise errors.TopicTableConflict(f"topic {topic} was detached from its table {name}", hint=NEW_TABLE_HINT)


def decode_foreign_table(key: str, entry: Entry) -> ForeignTableRecord:
    """The record at `key`. Raises MetadataDamaged."""
    try:
        return msgspec.json.decode(entry.value, type=ForeignTableRecord)
    except msgspec.MsgspecError as error:
        raise errors.MetadataDamaged(
            f"{key} in the metadata store is not a mirror of a table: {error}",
            hint="`icestream lake recreate` makes a fresh table, `adopt` takes one as it is",
        ) from None
