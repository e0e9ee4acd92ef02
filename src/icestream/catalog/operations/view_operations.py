"""Operations on views: create, load, replace, register, rename, drop, list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import ViewRecord
from icestream.catalog.idempotency import RELOAD_HINT, IdempotentRequest, RequestResult
from icestream.catalog.operations.namespace_operations import NamePage
from icestream.catalog.operations.relation_lookup import RelationLookup, VisibleRelations
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.plans.planned_transaction import PLACES_CHANGED
from icestream.catalog.transactions import Attempt, Plan, TransactionGuard, TransactionRunner
from icestream.iceberg import metadata_file, values
from icestream.iceberg.file_io import refusing_links
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import check_inside, namespace_location, new_location
from icestream.iceberg.values import Object
from icestream.iceberg.view_metadata import ViewMetadata
from icestream.iceberg.view_updates import commit, new_view_metadata
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry


class LoadedView(NamedTuple):
    location: str
    view: ViewMetadata


class ViewOperations:
    """The operations of clients on views."""

    def __init__(
        self, runner: TransactionRunner, relations: RelationLookup, warehouse: str, roots: Sequence[str]
    ) -> None:
        self._runner = runner
        self._relations = relations
        self._warehouse = warehouse
        self._roots = roots

    async def load(self, identifier: Identifier) -> LoadedView:
        _, _, loaded = await self._load(identifier)
        return loaded

    async def _load(self, identifier: Identifier) -> tuple[Entry, ViewRecord, LoadedView]:
        entry, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))

        async def current_location() -> str:
            nonlocal entry, record
            entry, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))
            return record.location

        documents = self._runner.documents
        location, view = await self._relations.document(record.location, current_location, documents.view)
        return entry, record, LoadedView(location, view)

    async def exists(self, identifier: Identifier) -> None:
        """Raises UnknownView."""
        relation_plans.view_of(identifier, await self._relations.entry(identifier))

    async def list(
        self, namespace: Namespace, token: str | None, size: int | None, is_visible: VisibleRelations | None = None
    ) -> NamePage:
        return await self._relations.list(namespace, relation_plans.VIEW, token, size, is_visible)

    async def rename(self, source: Identifier, target: Identifier, request: IdempotentRequest | None = None) -> None:
        await self._relations.rename(source, target, relation_plans.VIEW, False, request)

    async def create(
        self,
        identifier: Identifier,
        definition: Object,
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> LoadedView:
        """Creates a view. Raises AlreadyExists, UnknownNamespace."""
        requested = values.optional_text(definition, "location")
        uuid = self._runner.documents.new_uuid()
        location = (
            check_inside(requested, self._roots)
            if requested is not None
            else new_location(namespace_location(self._warehouse, identifier.namespace), identifier.name, uuid)
        )
        view = new_view_metadata(definition, location, uuid, self._runner.now_ms())

        async def plan() -> Attempt[LoadedView]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            # Planned once without a file: a refusal then leaves no file behind.
            relation_plans.create(identifier, ViewRecord(uuid, "", 0), namespace, entry)
            file = await self._runner.documents.write(view, view.properties, 0)
            transaction = relation_plans.create(identifier, ViewRecord(uuid, file, 0), namespace, entry)
            # A chosen location may be taken by another change at the same time; a generated one has a UUID.
            if requested is not None:
                transaction = transaction.with_more([], [PLACES_CHANGED])
            return Attempt(
                transaction, LoadedView(file, view), [file], is_create=True, request_result=RequestResult([uuid])
            )

        return await self._run(identifier, plan, request, guard)

    async def replace(
        self,
        identifier: Identifier,
        requirements: Sequence[Object],
        updates: Sequence[Object],
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> LoadedView:
        """Applies updates to a view if its requirements hold. Raises UnknownView, CommitConflict."""

        async def plan() -> Attempt[LoadedView]:
            entry, record, loaded = await self._load(identifier)
            view = commit(loaded.view, requirements, updates, self._runner.now_ms())
            request_result = RequestResult([record.uuid])
            if view is loaded.view:
                unchanged = cmd.AtRevision(catalog_keys.relation_key(identifier), entry.mod_revision)
                return Attempt(None, loaded, request_result=request_result, unchanged=[unchanged])
            if view.location != loaded.view.location:
                check_inside(view.location, self._roots)
            file = await self._runner.documents.write(view, view.properties, record.version + 1)
            new_record = ViewRecord(record.uuid, file, record.version + 1)
            transaction = relation_plans.swap_pointer(identifier, entry, new_record)
            if view.location != loaded.view.location:
                transaction = transaction.with_more([], [PLACES_CHANGED])
            return Attempt(
                transaction.checked(),
                LoadedView(file, view),
                [file],
                was_applied=self._was_replaced(identifier, entry, new_record),
                request_result=request_result,
            )

        return await self._run(identifier, plan, request, guard)

    def _was_replaced(
        self, identifier: Identifier, before: Entry, new_record: ViewRecord
    ) -> Callable[[], Awaitable[bool]]:
        """Returns a check after a lost reply: False if the file in force has the version of ours, which then never
        was."""

        async def check() -> bool:
            entry, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))
            if entry.create_revision != before.create_revision or record.version != new_record.version:
                raise errors.OutcomeUnknown(f"{identifier} was changed by another client meanwhile", hint=RELOAD_HINT)
            return False

        return check

    async def register(
        self,
        identifier: Identifier,
        location: str,
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> LoadedView:
        """Registers a view from an existing metadata file, which is made durable first."""
        location = check_inside(location, self._roots)

        async def plan() -> Attempt[LoadedView]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            namespace_plans.existing(identifier.namespace, namespace)
            relation_plans.check_free(identifier, entry, relation_plans.VIEW)
            view = await refusing_links(location, self._runner.documents.view(location))
            await self._runner.documents.make_durable([location])
            record = ViewRecord(view.uuid, location, metadata_file.version_of(location))
            transaction = relation_plans.create(identifier, record, namespace, entry).with_more([], [PLACES_CHANGED])
            return Attempt(
                transaction, LoadedView(location, view), is_create=True, request_result=RequestResult([view.uuid])
            )

        return await self._run(identifier, plan, request, guard)

    async def drop(self, identifier: Identifier, request: IdempotentRequest | None = None) -> None:
        async def plan() -> Attempt[None]:
            entry = await self._relations.entry(identifier)
            was_dropped = self._relations.was_dropped(identifier, entry)
            return Attempt(relation_plans.drop_view(identifier, entry), None, was_applied=was_dropped)

        async def answer_repeat(_: RequestResult) -> None:
            return None

        await self._runner.run_until_applied([catalog_keys.relation_key(identifier)], plan, request, answer_repeat)

    async def _run(
        self,
        identifier: Identifier,
        plan: Plan[LoadedView],
        request: IdempotentRequest | None,
        guard: TransactionGuard | None,
    ) -> LoadedView:
        """Runs a change of a view; a repeat is answered with the view as it is now."""

        async def answer_repeat(request_result: RequestResult) -> LoadedView:
            loaded = await self.load(identifier)
            request_result.check([loaded.view.uuid])
            return loaded

        return await self._runner.run_until_applied(
            [catalog_keys.relation_key(identifier)], plan, request, answer_repeat, guard
        )
