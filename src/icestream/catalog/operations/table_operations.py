"""Operations on tables apart from commits: create, stage, register, load, rename, drop, list."""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.operations.condemned_check import CondemnedCheck
from icestream.catalog.operations.namespace_operations import NamePage, table_base
from icestream.catalog.operations.relation_lookup import RelationLookup, VisibleRelations
from icestream.catalog.operations.table_commits import CommittedTable, TableCommits
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.plans.planned_transaction import PLACES_CHANGED
from icestream.catalog.topic_rules import topic_properties
from icestream.catalog.transactions import AnswerRepeat, Attempt, TransactionGuard, TransactionRunner
from icestream.iceberg import metadata_file, values
from icestream.iceberg.file_io import refusing_links
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import check_inside, new_location
from icestream.iceberg.table_commit import new_table_metadata
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object


class TableOperations:
    """The operations of clients on tables, apart from commits."""

    def __init__(
        self,
        runner: TransactionRunner,
        relations: RelationLookup,
        commits: TableCommits,
        condemned: CondemnedCheck,
        warehouse: str,
        roots: Sequence[str],
    ) -> None:
        """`condemned`: of tables that are registered, whose files may be about to be removed."""
        self._runner = runner
        self._relations = relations
        self._commits = commits
        self._condemned = condemned
        self._warehouse = warehouse
        self._roots = roots

    async def load(self, identifier: Identifier) -> CommittedTable:
        """Raises UnknownTable, and MetadataFileMissing if its metadata file was removed, also while it is cached."""
        loaded = await self._commits.load(identifier, self._runner.documents.checked_table)
        binding = loaded.record.binding
        committed = None if binding is None else binding.committed()
        return CommittedTable(loaded.state.location, loaded.state.table, committed=committed)

    async def read_file(self, location: str) -> TableMetadata:
        """Returns the table of a metadata file, which need not be in the catalog. Raises InvalidInput outside the
        warehouse, MetadataFileMissing, MetadataFileDamaged."""
        return await refusing_links(location, self._runner.documents.read_table(location))

    async def exists(self, identifier: Identifier) -> None:
        """Raises UnknownTable. The table's metadata file is not read."""
        relation_plans.table_of(identifier, await self._relations.entry(identifier))

    async def list(
        self, namespace: Namespace, token: str | None, size: int | None, is_visible: VisibleRelations | None = None
    ) -> NamePage:
        return await self._relations.list(namespace, relation_plans.TABLE, token, size, is_visible)

    async def rename(
        self, source: Identifier, target: Identifier, is_forced: bool = False, request: IdempotentRequest | None = None
    ) -> None:
        await self._relations.rename(source, target, relation_plans.TABLE, is_forced, request)

    # --- new tables ---

    async def stage(self, identifier: Identifier, definition: Object) -> TableMetadata:
        """Returns a table as it would be created, and creates an empty directory for it. A commit with `assert-create`
        creates it."""
        base = await self.base(identifier.namespace)
        relation_plans.check_free(identifier, await self._relations.entry(identifier), relation_plans.TABLE)
        table = self._new_table(identifier, definition, base)
        await self._runner.documents.create_directory(table)
        return table

    async def create(
        self,
        identifier: Identifier,
        definition: Object,
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> CommittedTable:
        """Creates a table. Raises AlreadyExists and UnknownNamespace."""
        new_table: TableMetadata | None = None
        is_chosen = values.optional_text(definition, "location") is not None

        async def plan() -> Attempt[CommittedTable]:
            nonlocal new_table  # every attempt creates the same UUID
            new_table = new_table or self._new_table(identifier, definition, await self.base(identifier.namespace))
            table, uuid = new_table, str(new_table.uuid)
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            # Planned once without a file: a refusal then leaves no file behind.
            relation_plans.create(identifier, TableRecord(uuid, "", 0), namespace, entry)
            (location,) = await self._commits.write_all([(table, 0)])
            elsewhere = metadata_file.places_elsewhere(table.location, table.properties)
            record = TableRecord(uuid, location, 0, places_elsewhere=elsewhere, is_pipeline_only=True)
            transaction = relation_plans.create(identifier, record, namespace, entry)
            if is_chosen or elsewhere:
                transaction = transaction.with_more([], [PLACES_CHANGED])
            return Attempt(
                transaction,
                CommittedTable(location, table),
                [location],
                is_create=True,
                request_result=RequestResult([uuid]),
            )

        return await self._runner.run_until_applied(
            [catalog_keys.relation_key(identifier)], plan, request, self._answer_repeat(identifier), guard
        )

    def _answer_repeat(self, identifier: Identifier) -> AnswerRepeat[CommittedTable]:
        async def answer_repeat(request_result: RequestResult) -> CommittedTable:
            committed = await self.load(identifier)
            request_result.check([committed.table.uuid or ""])
            return committed

        return answer_repeat

    async def base(self, namespace: Namespace) -> str:
        """Returns the location below which new tables of a namespace lie. Raises UnknownNamespace."""
        record = namespace_plans.existing(namespace, await self._relations.namespace(namespace))
        return table_base(namespace, record.properties, self._warehouse, self._roots)

    def _new_table(self, identifier: Identifier, definition: Object, base: str) -> TableMetadata:
        """Returns the metadata of a new table. `base`: the location of its namespace."""
        table_properties = values.optional_text_map(definition, "properties")
        topic_properties.check_new(table_properties)
        metadata_file.check_places(table_properties, self._roots)
        requested = values.optional_text(definition, "location")
        uuid = self._runner.documents.new_uuid()
        location = (
            check_inside(requested, self._roots) if requested is not None else new_location(base, identifier.name, uuid)
        )
        return new_table_metadata(definition, location, uuid, self._runner.now_ms())

    async def register(
        self,
        identifier: Identifier,
        location: str,
        is_overwriting: bool = False,
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> CommittedTable:
        """Registers a table from an existing metadata file. What that names is made durable first (hazard 11)."""
        location = check_inside(location, self._roots)

        async def plan() -> Attempt[CommittedTable]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            namespace_plans.existing(identifier.namespace, namespace)
            if not is_overwriting or entry is None:
                relation_plans.check_free(identifier, entry, relation_plans.TABLE)
            table = await refusing_links(location, self._runner.documents.table(location))
            # By UUID, not by name: the same table could be registered under a second name, and the pipeline would write
            # to one while engines change the other.
            bound = await self._runner.store.get(catalog_keys.bound_key(table.uuid or ""))
            relation_plans.check_registrable(table.uuid, bound)
            condemned = await self._condemned.plan([(None, [*table.snapshots])])
            places = metadata_file.data_places(table.location, table.properties)
            await self._runner.documents.make_durable([location, *places])
            version = metadata_file.version_of(location)
            elsewhere = metadata_file.places_elsewhere(table.location, table.properties)
            record = TableRecord(table.uuid or "", location, version, is_registered=True, places_elsewhere=elsewhere)
            if entry is None:
                transaction = relation_plans.create(identifier, record, namespace, entry)
            else:
                transaction = relation_plans.overwrite(identifier, record, entry)
            purge_key = catalog_keys.purge_key(record.uuid)
            purge_entry = await self._runner.store.get(purge_key)
            transaction = relation_plans.cancel_purge(transaction, purge_key, purge_entry)
            transaction = transaction.with_more([], [PLACES_CHANGED]).with_more(*condemned)
            return Attempt(
                transaction,
                CommittedTable(location, table),
                is_create=not is_overwriting,
                request_result=RequestResult([record.uuid]),
            )

        return await self._runner.run_until_applied(
            [catalog_keys.relation_key(identifier)], plan, request, self._answer_repeat(identifier), guard
        )

    async def drop(
        self,
        identifier: Identifier,
        is_purging: bool = False,
        is_forced: bool = False,
        request: IdempotentRequest | None = None,
    ) -> None:
        """Drops a table; its files stay. `is_purging` records a purge, which the clean-up carries out later.
        `is_forced` also drops the table of a topic. Raises UnknownTable."""
        first_uuid: list[str] = []

        async def plan() -> Attempt[None]:
            entry = await self._relations.entry(identifier)
            purge_ms = self._runner.now_ms() if is_purging else None
            transaction, record = relation_plans.drop_table(identifier, entry, is_forced, purge_ms)
            if first_uuid and first_uuid[0] != record.uuid:
                # A table that was created under this name since the first attempt is not the one to drop.
                raise errors.UnknownTable(f"Table does not exist: {identifier}")
            first_uuid[:] = [record.uuid]
            return Attempt(transaction, None, was_applied=self._relations.was_dropped(identifier, entry))

        async def answer_repeat(_: RequestResult) -> None:
            return None

        await self._runner.run_until_applied([catalog_keys.relation_key(identifier)], plan, request, answer_repeat)
