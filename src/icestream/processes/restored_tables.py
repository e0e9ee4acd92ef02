"""Where restored tables lie, and the writing of their files, by the code of the pipeline (restore_run.py).

embedded, glue, sql   in the warehouse, where the catalog places tables too
rest                  at the `location` of the namespace, if the server says one, else in the warehouse
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from icestream import errors
from icestream.catalog.topic_rules import topic_schema
from icestream.catalogs.object_files import open_files
from icestream.catalogs.table_catalog import TableCatalog
from icestream.catalogs.topic_table_name import table_for_topic
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import namespace_location, normalize
from icestream.iceberg.table_commit import new_table_metadata
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.erased_offsets import ErasedOffsets
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.mqtt.topics import native_topic
from icestream.pipeline.erasure.restored_rows import RestoredRows, StoredDataFile, without_erased, write_without
from icestream.pipeline.files.file_store import FileStore
from icestream.pipeline.files.topic_files import write_topic
from icestream.pipeline.round_plan import MqttTarget, TableTarget
from icestream.pipeline.rows.log_sections import sections_of
from icestream.pipeline.rows.topic_rows import Span, topic_rows
from icestream.pipeline.tables import table_policy
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.processes.component_options import fixed_namespace, store_options
from icestream.processes.restore_run import TailSpan
from icestream.readers.data_files import table_columns
from icestream.settings import Settings
from icestream.wal.record_scan import scan_records


class RestoredTables:
    """The `TableWriter` of a restore into the warehouse of these settings."""

    def __init__(
        self, settings: Settings, files: TableFiles | None = None, foreign: TableCatalog | None = None
    ) -> None:
        """`foreign`: the catalog of the tables, if it is another than ours. It registers them in the end."""
        self._warehouse = str(settings.storage.iceberg_config.warehouse)
        self._fixed = fixed_namespace(settings)
        self._foreign = foreign
        self._asks_for_places = settings.catalog.type == "rest"
        store = store_options(settings)
        self._storage: dict[str, Any] = {} if store.kind == "local" else dataclasses.asdict(store)
        self._files = files or open_files(store)

    @property
    def is_foreign(self) -> bool:
        return self._foreign is not None

    async def place(
        self, topic: TopicName, uuid: str, *, is_in_place: bool = False, is_free: bool = True
    ) -> tuple[Identifier, str]:
        identifier = table_for_topic(topic, self._fixed)
        properties: Mapping[str, str] = {}
        if self._foreign is not None:
            # Before anything is copied: what the catalog cannot do would be known at the end only.
            await self._foreign.check_registers(is_renaming=is_in_place)
            properties = await self._namespace(self._foreign, identifier.namespace)
            if is_free:
                await self._check_free(self._foreign, identifier, uuid)
        location = properties.get("location") if self._asks_for_places else None
        folder = location or namespace_location(self._warehouse, identifier.namespace)
        try:
            return identifier, normalize(folder)
        except errors.InvalidInput:
            raise errors.ConfigurationError(
                f"the place of table {identifier} is not known: {folder!r} is not a location",
                hint="set storage.iceberg_config.warehouse to a location, or the property `location` of the namespace",
            ) from None

    async def _namespace(self, catalog: TableCatalog, namespace: Namespace) -> Mapping[str, str]:
        """The properties of a namespace, which is made if it is missing."""
        for depth in range(1, len(namespace) + 1):
            try:
                await catalog.create_namespace(namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        return await catalog.load_namespace(namespace)

    async def _check_free(self, catalog: TableCatalog, identifier: Identifier, uuid: str) -> None:
        """Raises AlreadyExists if another table than the restored one has the name."""
        try:
            loaded = await catalog.load(identifier)
        except errors.UnknownTable:
            return
        if loaded.uuid != uuid:
            raise errors.AlreadyExists(
                f"the catalog has a table {identifier} already, with the UUID {loaded.uuid}",
                hint="rename or drop it with the tools of that catalog, or restore under another name with --as",
            )

    def new_document(self, policies: PolicyValues, location: str, uuid: str, now_ms: int) -> TableMetadata:
        layout = table_policy.new_layout(policies.table_layout)
        return new_table_metadata({"schema": topic_schema.new_schema(), **layout}, location, uuid, now_ms)

    def write_tail(
        self, table: TableMetadata, topic: TopicName, topic_id: int, tail: TailSpan, erased: ErasedOffsets
    ) -> RestoredRows:
        records, end, _, _ = scan_records(tail.data, 0, 0, 1)
        if end != len(tail.data):
            raise errors.BackupDamaged(f"a tail of {topic} is damaged at byte {end} of {len(tail.data)}")
        span = Span(topic_id, tail.shard, tail.start, tail.end)
        (rows,) = topic_rows(sections_of(tail.data, 0, records), [span])
        kept = without_erased(rows, erased) if erased.within(tail.shard, tail.start, tail.end) else rows
        if not kept.rows:
            return RestoredRows([], rows.rows)
        target = self._target(table, topic)
        store = open_store(target)
        written = write_topic([kept], target, store, fresh_name)
        _settle(store)
        if written.ends is not None:
            raise errors.TableUnreadable(
                f"a tail of {topic} has more partition values than are written at once",
                hint="restore with the pipeline of the source: let it commit before the backup",
            )
        files = [msgspec.structs.replace(file, topic_id=0) for file in written.files]
        return RestoredRows(files, rows.rows - kept.rows)

    def write_without(
        self, table: TableMetadata, topic: TopicName, file: StoredDataFile, erased: ErasedOffsets
    ) -> RestoredRows | None:
        target = self._target(table, topic)
        store = open_store(target)
        columns = table_columns(table.current_schema, table.properties)
        rows = write_without(file, erased, columns, target, store, fresh_name)
        _settle(store)
        return rows

    def _target(self, table: TableMetadata, topic: TopicName) -> TableTarget:
        names = {field["name"] for field in table.current_schema["fields"]}
        has_mqtt = all(field["name"] in names for field in topic_schema.mqtt_fields())
        mqtt = MqttTarget(native_topic(str(topic))) if has_mqtt else None
        return table_policy.target_of(table, {}, self._storage, mqtt)

    async def size(self, location: str) -> int:
        return await self._files.size(location)

    async def copy(self, location: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        await self._files.create_large(location, pieces)

    async def write(self, location: str, pieces: Sequence[bytes]) -> None:
        await self._files.create_large(location, lambda: pieces)

    async def names(self, folder: str) -> set[str]:
        return {name for name, _ in await self._files.names(folder)}

    async def files_below(self, folder: str) -> list[str]:
        return [f"{folder}/{path}" for path in await self._files.files_below(folder)]

    async def remove(self, location: str) -> None:
        await self._files.remove(location)
        if await self._files.exists(location):
            raise errors.StorageUnavailable(
                f"{location} of an earlier run of this restore cannot be removed", hint="restore again: it continues"
            )

    async def make_durable(self, location: str) -> None:
        await self._files.make_durable([location])


def _settle(store: FileStore) -> None:
    """Raises StorageUnavailable if a file was not written."""
    for location, reason in store.settle().items():
        raise errors.StorageUnavailable(f"{location} was not written: {reason}", hint="restore again: it continues")
