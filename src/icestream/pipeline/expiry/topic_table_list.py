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


class TopicTableList:
    """Lists the tables of topics by pages."""

    def __init__(self, store: MetadataStore, *, is_embedded: bool) -> None:
        self._store = store
        self._is_embedded = is_embedded

    async def page(self, after: str) -> tuple[list[NamedTable], str]:
        """Returns the tables behind a position, and the next position; "" at the beginning and at the end."""
        prefix = catalog_keys.TOPICS if self._is_embedded else catalog_keys.FOREIGN_TABLES
        page = await self._store.list(prefix, prefix + after if after else "", limits.EXPIRY_PAGE)
        tables = [table for key, entry in page if (table := self._decode(prefix, key, entry)) is not None]
        return tables, page[-1][0].removeprefix(prefix) if len(page) == limits.EXPIRY_PAGE else ""

    def _decode(self, prefix: str, key: str, entry: Entry) -> NamedTable | None:
        number = key.removeprefix(prefix)
        try:
            if self._is_embedded:
                record = catalog_records.decode(TopicTableRecord, key, entry)
                return NamedTable(int(number), Identifier(tuple(record.namespace), record.name))
            mirror = decode_foreign_table(key, entry)
        except errors.MetadataDamaged:
            return None  # reported where the table is used
        return None if mirror.is_detached else NamedTable(int(number), Identifier(tuple(mirror.namespace), mirror.name))
