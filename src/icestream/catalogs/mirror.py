"""What is noted in our own metadata store of a topic's table in another catalog, behind each commit (hazard 21).

The pipeline writes it and compares it with the table before it goes on; readers learn from it which table is whose, and
a watch of it tells them of each commit. It may lag behind the table, never lead. What an operator decides about the
table stands there, too (lake/foreign_operations.py): whoever writes it compares, so that nobody overwrites the other.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.catalog.topic_rules.binding import AdoptionBase
from icestream.catalog.topic_rules.removal import Removals
from icestream.metadata.entry import Entry

NOT_AGAIN: Final = "`icestream lake adopt`, `bind` or `recreate` gives the topic a table again (docs/lake.md)"


class ForeignTableRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the metadata store, at `foreign_table_key`."""

    namespace: list[str]
    name: str
    uuid: str
    committed: dict[int, int]
    snapshot_id: int = 0  # at which main stood then
    topic: str = ""
    base: AdoptionBase | None = None  # what an operator said, and of which snapshot; 0: of a table without any
    rows_up_to: int = -1  # the highest offset that the table had when it was said
    is_parted: bool = False  # it had this table, and has none
    rows: int = -1  # of that snapshot; -1: it did not say
    removals: Removals = ()  # what that snapshot lacks

    def check_has_table(self, topic: str) -> None:
        if self.is_parted:
            name = ".".join((*self.namespace, self.name))
            raise errors.TopicTableConflict(f"topic {topic} had the table {name} and has none now", hint=NOT_AGAIN)


def decode_foreign_table(key: str, entry: Entry) -> ForeignTableRecord:
    try:
        return msgspec.json.decode(entry.value, type=ForeignTableRecord)
    except msgspec.MsgspecError as error:
        raise errors.MetadataDamaged(
            f"{key} in the metadata store is no mirror of a table: {error}",
            hint="`icestream lake recreate` makes a fresh table, `adopt` takes one as it is",
        ) from None
