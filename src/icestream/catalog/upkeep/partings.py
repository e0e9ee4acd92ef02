"""Tables of topics that were deleted: they stay, as tables like any other (hazard 49).

The broker writes down, in the transaction that decides the deletion, which table the topic had. Parting them takes a
new metadata file, which only the lake process writes; until then nothing but the name of a topic that is gone is wrong.
A crash anywhere begins again: parting a table that is parted changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from icestream import errors
from icestream.catalog import keys
from icestream.catalog.calls.topics import Topics
from icestream.catalog.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.partings")


class Partings:
    def __init__(self, store: MetadataStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    async def work(self) -> AsyncIterator[None]:
        for key, _ in await self._store.list_all(keys.DELETED_TOPICS):
            topic_id = int(key.removeprefix(keys.DELETED_TOPICS))
            table = await self._topics.table_of(topic_id)  # as it is called now
            if table is not None:
                await self._part(table)
            await self._store.txn([], [cmd.Delete(keys.parted_key(topic_id)), cmd.Delete(key)])
            yield

    async def _part(self, table: Identifier) -> None:
        try:
            await self._topics.detach(table)
        except (errors.UnknownTable, errors.MetadataFileMissing, errors.MetadataFileDamaged) as error:
            _log.warning("the table of a deleted topic cannot be parted from it", table=str(table), reason=str(error))
        else:
            _log.info("the table of a deleted topic is like any other now", table=str(table))
