"""What clients ask about tables, apart from commits: create, stage, register, load, rename, drop, list."""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.operations.namespace_operations import NamePage, table_base
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.operations.table_commits import CommittedTable, TableCommits
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.topic_rules import topic_properties
from icestream.catalog.transactions import Again, Step, Steps
from icestream.iceberg import metadata_file, values
from icestream.iceberg.file_io import refusing_links
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import check_inside, new_location
from icestream.iceberg.table_commit import new_table_metadata
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class TableOperations:
    def __init__(
        self, steps: Steps, found: RelationLookup, commits: TableCommits, warehouse: str, roots: Sequence[str]
    ) -> None:
        self._steps = steps
        self._relations = found
        self._commits = commits
        self._warehouse = warehouse
        self._roots = roots

    async def load(self, identifier: Identifier) -> CommittedTable:
        found = await self._commits.load(identifier, self._steps.documents.checked_table)
        return CommittedTable(found.state.location, found.state.table)

    async def exists(self, identifier: Identifier) -> None:
        """Raises UnknownTable; its document is not read."""
        relation_plans.table_of(identifier, await self._relations.entry(identifier))

    async def list(self, namespace: Namespace, token: str | None, size: int | None) -> NamePage:
        return await self._relations.list(namespace, relation_plans.TABLE, token, size)

    async def rename(
        self, source: Identifier, target: Identifier, is_forced: bool = False, request: IdempotentRequest | None = None
    ) -> None:
        await self._relations.rename(source, target, relation_plans.TABLE, is_forced, request)

    # --- new tables ---

    async def stage(self, identifier: Identifier, asked: Object) -> TableMetadata:
        """A table as it would be created, and an empty folder for it. A commit with `assert-create` makes it."""
        base = await self._base(identifier.namespace)
        relation_plans.check_free(identifier, await self._relations.entry(identifier), relation_plans.TABLE)
        made = self._new(identifier, asked, base)
        await self._steps.documents.make_room(made)
        return made

    async def create(
        self, identifier: Identifier, asked: Object, request: IdempotentRequest | None = None
    ) -> CommittedTable:
        table: TableMetadata | None = None

        async def plan() -> Step[CommittedTable]:
            nonlocal table  # the same uuid in every attempt
            table = table or self._new(identifier, asked, await self._base(identifier.namespace))
            made, uuid = table, str(table.uuid)
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            relation_plans.create(
                identifier, TableRecord(uuid, "", 0), namespace, entry
            )  # refused before it is written
            (location,) = await self._commits.write_all([(made, 0)])
            record = TableRecord(uuid, location, 0)
            planned = relation_plans.create(identifier, record, namespace, entry)
            return Step(planned, CommittedTable(location, made), [location], is_once=True, noted=RequestResult([uuid]))

        return await self._steps.make([catalog_keys.relation_key(identifier)], plan, request, self._again(identifier))

    def _again(self, identifier: Identifier) -> Again[CommittedTable]:
        async def again(noted: RequestResult) -> CommittedTable:
            found = await self.load(identifier)
            noted.check([found.table.uuid or ""])
            return found

        return again

    async def _base(self, namespace: Namespace) -> str:
        """The location of a namespace, below which its tables lie; its own is used where the catalog may write there.
        Raises UnknownNamespace."""
        record = namespace_plans.existing(namespace, await self._relations.namespace(namespace))
        return table_base(namespace, record.properties, self._warehouse, self._roots)

    def _new(self, identifier: Identifier, asked: Object, base: str) -> TableMetadata:
        """`base`: the location of its namespace."""
        given_properties = values.optional_text_map(asked, "properties")
        topic_properties.check_new(given_properties)
        metadata_file.check_places(given_properties, self._roots)
        given = values.optional_text(asked, "location")
        uuid = self._steps.documents.new_uuid()
        location = check_inside(given, self._roots) if given is not None else new_location(base, identifier.name, uuid)
        return new_table_metadata(asked, location, uuid, self._steps.now_ms())

    async def register(
        self,
        identifier: Identifier,
        location: str,
        is_overwriting: bool = False,
        request: IdempotentRequest | None = None,
    ) -> CommittedTable:
        """A table from a metadata file that is there. What it names is made durable first (hazard 11)."""
        location = check_inside(location, self._roots)

        async def plan() -> Step[CommittedTable]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            namespace_plans.existing(identifier.namespace, namespace)
            if not is_overwriting or entry is None:
                relation_plans.check_free(identifier, entry, relation_plans.TABLE)
            table = await refusing_links(location, self._steps.documents.table(location))
            bound = await self._steps.store.get(catalog_keys.bound_key(table.uuid or ""))
            relation_plans.check_registrable(table.uuid, bound)
            places = metadata_file.data_places(table.location, table.properties)
            await self._steps.documents.make_durable([location, *places])
            version = metadata_file.version_of(location)
            record = TableRecord(table.uuid or "", location, version, is_registered=True)
            if entry is None:
                planned = relation_plans.create(identifier, record, namespace, entry)
            else:
                planned = relation_plans.overwrite(identifier, record, entry)
            key = catalog_keys.purge_key(record.uuid)
            planned = relation_plans.rescued(planned, key, await self._steps.store.get(key))
            noted = RequestResult([record.uuid])
            return Step(planned, CommittedTable(location, table), is_once=not is_overwriting, noted=noted)

        return await self._steps.make([catalog_keys.relation_key(identifier)], plan, request, self._again(identifier))

    async def drop(
        self,
        identifier: Identifier,
        is_purging: bool = False,
        is_forced: bool = False,
        request: IdempotentRequest | None = None,
    ) -> None:
        """Its files stay; a purge is written down, and done later by whoever tidies up."""
        first: list[str] = []

        async def plan() -> Step[None]:
            entry = await self._relations.entry(identifier)
            purge_ms = self._steps.now_ms() if is_purging else None
            planned, record = relation_plans.drop_table(identifier, entry, is_forced, purge_ms)
            if first and first[0] != record.uuid:
                raise errors.UnknownTable(f"Table does not exist: {identifier}")  # another one of its name
            first[:] = [record.uuid]
            return Step(planned, None, was_done=self._relations.was_dropped(identifier, entry))

        async def again(_: RequestResult) -> None:
            return None

        await self._steps.make([catalog_keys.relation_key(identifier)], plan, request, again)
