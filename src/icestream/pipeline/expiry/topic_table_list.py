"""The tables of all topics, as the metadata store names them, in our own catalog or another one."""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import TopicTableRecord
from icestream.catalogs.mirror import decode_foreign_table
from icestream.iceberg.identifier import Identifier
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore


class NamedTable(NamedTuple):
    """The table of a topic."""

    topic_id: int
    identifier: Identifier


class BoundTable(NamedTuple):
    """The table that a topic has now."""

    identifier: Identifier
    uuid: str


class TopicTableList:
    """Lists the tables of topics by pages."""

    def __init__(self, store: MetadataStore, *, is_embedded: bool) -> None:
        self._store = store
        self._is_embedded = is_embedded

    async def page(self, after: str) -> tuple[list[NamedTable], str]:
        """Returns the tables behind a position, and the next position; "" at the beginning and at the end."""
        prefix = catalog_keys.TOPICS if self._is_embedded else catalog_keys.FOREIGN_TABLES
        page = await self._store.list(prefix, prefix + after if after else "", limits.EXPIRY_PAGE)
        tables = [
            NamedTable(int(key.removeprefix(prefix)), bound.identifier)
            for key, entry in page
            if (bound := self._decode(key, entry)) is not None
        ]
        return tables, page[-1][0].removeprefix(prefix) if len(page) == limits.EXPIRY_PAGE else ""

    async def bound(self, topic_id: int) -> BoundTable | None:
        """The table of a topic now; None if it has none, such as one that was detached from its table."""
        key = catalog_keys.topic_key(topic_id) if self._is_embedded else catalog_keys.foreign_table_key(topic_id)
        entry = await self._store.get(key)
        return None if entry is None else self._decode(key, entry)

    def _decode(self, key: str, entry: Entry) -> BoundTable | None:
        try:
            if self._is_embedded:
                record = catalog_records.decode(TopicTableRecord, key, entry)
                return BoundTable(Identifier(tuple(record.namespace), record.name), record.uuid)
            mirror = decode_foreign_table(key, entry)
        except errors.MetadataDamaged:
            return None  # reported where the table is used
        return None if mirror.is_detached else BoundTable(Identifier(tuple(mirror.namespace), mirror.name), mirror.uuid)
