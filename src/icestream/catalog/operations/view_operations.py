"""What clients ask about views: create, load, replace, register, rename, drop, list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import ViewRecord
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.operations.namespace_operations import NamePage
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.transactions import Plan, Step, Steps
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
    def __init__(self, steps: Steps, found: RelationLookup, warehouse: str, roots: Sequence[str]) -> None:
        self._steps = steps
        self._relations = found
        self._warehouse = warehouse
        self._roots = roots

    async def load(self, identifier: Identifier) -> LoadedView:
        _, _, found = await self._load(identifier)
        return found

    async def _load(self, identifier: Identifier) -> tuple[Entry, ViewRecord, LoadedView]:
        entry, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))

        async def location_now() -> str:
            nonlocal entry, record
            entry, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))
            return record.location

        documents = self._steps.documents
        location, view = await self._relations.document(record.location, location_now, documents.view)
        return entry, record, LoadedView(location, view)

    async def exists(self, identifier: Identifier) -> None:
        """Raises UnknownView."""
        relation_plans.view_of(identifier, await self._relations.entry(identifier))

    async def list(self, namespace: Namespace, token: str | None, size: int | None) -> NamePage:
        return await self._relations.list(namespace, relation_plans.VIEW, token, size)

    async def rename(self, source: Identifier, target: Identifier, request: IdempotentRequest | None = None) -> None:
        await self._relations.rename(source, target, relation_plans.VIEW, False, request)

    async def create(
        self, identifier: Identifier, asked: Object, request: IdempotentRequest | None = None
    ) -> LoadedView:
        given = values.optional_text(asked, "location")
        uuid = self._steps.documents.new_uuid()
        location = (
            check_inside(given, self._roots)
            if given is not None
            else new_location(namespace_location(self._warehouse, identifier.namespace), identifier.name, uuid)
        )
        made = new_view_metadata(asked, location, uuid, self._steps.now_ms())

        async def plan() -> Step[LoadedView]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            relation_plans.create(identifier, ViewRecord(uuid, "", 0), namespace, entry)  # refused before it is written
            written = await self._steps.documents.write(made, made.properties, 0)
            planned = relation_plans.create(identifier, ViewRecord(uuid, written, 0), namespace, entry)
            return Step(planned, LoadedView(written, made), [written], is_once=True, noted=RequestResult([uuid]))

        return await self._make(identifier, plan, request)

    async def replace(
        self,
        identifier: Identifier,
        requirements: Sequence[Object],
        updates: Sequence[Object],
        request: IdempotentRequest | None = None,
    ) -> LoadedView:
        async def plan() -> Step[LoadedView]:
            entry, record, found = await self._load(identifier)
            made = commit(found.view, requirements, updates, self._steps.now_ms())
            noted = RequestResult([record.uuid])
            if made is found.view:
                read = cmd.AtRevision(catalog_keys.relation_key(identifier), entry.mod_revision)
                return Step(None, found, noted=noted, unchanged=[read])
            if made.location != found.view.location:
                check_inside(made.location, self._roots)
            written = await self._steps.documents.write(made, made.properties, record.version + 1)
            after = ViewRecord(record.uuid, written, record.version + 1)
            moved = relation_plans.moved(identifier, entry, after)
            was_done = self._was_replaced(identifier, entry, after)
            return Step(moved.checked(), LoadedView(written, made), [written], was_done=was_done, noted=noted)

        return await self._make(identifier, plan, request)

    def _was_replaced(self, identifier: Identifier, before: Entry, ours: ViewRecord) -> Callable[[], Awaitable[bool]]:
        """By a file that is not in force. It never was if the one that is has the number of ours."""

        async def look() -> bool:
            now, record = relation_plans.view_of(identifier, await self._relations.entry(identifier))
            if now.create_revision != before.create_revision or record.version != ours.version:
                raise errors.OutcomeUnknown(f"others went on with {identifier}", hint=LOOK_FIRST)
            return False

        return look

    async def register(
        self, identifier: Identifier, location: str, request: IdempotentRequest | None = None
    ) -> LoadedView:
        location = check_inside(location, self._roots)

        async def plan() -> Step[LoadedView]:
            namespace = await self._relations.namespace(identifier.namespace)
            entry = await self._relations.entry(identifier)
            namespace_plans.existing(identifier.namespace, namespace)
            relation_plans.check_free(identifier, entry, relation_plans.VIEW)
            view = await refusing_links(location, self._steps.documents.view(location))
            await self._steps.documents.make_durable([location])
            record = ViewRecord(view.uuid, location, metadata_file.version_of(location))
            planned = relation_plans.create(identifier, record, namespace, entry)
            return Step(planned, LoadedView(location, view), is_once=True, noted=RequestResult([view.uuid]))

        return await self._make(identifier, plan, request)

    async def drop(self, identifier: Identifier, request: IdempotentRequest | None = None) -> None:
        async def plan() -> Step[None]:
            entry = await self._relations.entry(identifier)
            was_done = self._relations.was_dropped(identifier, entry)
            return Step(relation_plans.drop_view(identifier, entry), None, was_done=was_done)

        async def again(_: RequestResult) -> None:
            return None

        await self._steps.make([catalog_keys.relation_key(identifier)], plan, request, again)

    async def _make(
        self, identifier: Identifier, plan: Plan[LoadedView], request: IdempotentRequest | None
    ) -> LoadedView:
        async def again(noted: RequestResult) -> LoadedView:
            found = await self.load(identifier)
            noted.check([found.view.uuid])
            return found

        return await self._steps.make([catalog_keys.relation_key(identifier)], plan, request, again)
