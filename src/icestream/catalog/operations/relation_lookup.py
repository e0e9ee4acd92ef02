"""What tables and views have in common: reading their records and documents, listing, renaming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.operations.namespace_operations import NamePage, page_size
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.transactions import Step, Steps
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.metadata.entry import Entry

Document = TypeVar("Document")


class RelationLookup:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._store = steps.store

    async def entry(self, identifier: Identifier) -> Entry | None:
        return await self._store.get(catalog_keys.relation_key(identifier))

    async def namespace(self, namespace: Namespace) -> Entry | None:
        return await self._store.get(catalog_keys.namespace_key(namespace))

    async def document(
        self, location: str, location_now: Callable[[], Awaitable[str]], read: Callable[[str], Awaitable[Document]]
    ) -> tuple[str, Document]:
        """A pointer's file. One that is gone because the pointer moved on is asked for again."""
        while True:
            try:
                return location, await read(location)
            except errors.MetadataFileMissing:
                moved = await location_now()
                if moved == location:
                    raise
                location = moved

    def was_dropped(self, identifier: Identifier, before: Entry | None) -> Callable[[], Awaitable[bool]]:
        """For a step that takes this name away. It is there: still, or again, which nobody may undo."""

        async def look() -> bool:
            now = await self.entry(identifier)
            if before is None or now is None or now.create_revision != before.create_revision:
                raise errors.OutcomeUnknown(f"{identifier} is gone, or was made anew by others", hint=LOOK_FIRST)
            return False

        return look

    async def list(self, namespace: Namespace, kind: str, token: str | None, size: int | None) -> NamePage:
        """The names of all tables, or of all views, in a namespace."""
        namespace_plans.existing(namespace, await self.namespace(namespace))
        prefix = catalog_keys.relations_in(namespace)
        wanted = None if token is None else page_size(size)
        after = catalog_keys.key_after(prefix, token or "")
        names: list[str] = []
        while found := await self._store.list(prefix, after):
            for key, entry in found:
                if relation_plans.kind_of(catalog_records.decode_relation(key, entry)) == kind:
                    if len(names) == wanted:
                        return NamePage(names, catalog_keys.page_token(names[-1]))
                    names.append(catalog_keys.last_name(prefix, key))
            after = found[-1][0]
        return NamePage(names, None)

    async def rename(
        self,
        source: Identifier,
        target: Identifier,
        kind: str,
        is_forced: bool = False,
        request: IdempotentRequest | None = None,
    ) -> None:
        async def plan() -> Step[None]:
            entry, namespace = await self.entry(source), await self.namespace(target.namespace)
            there = await self.entry(target)
            planned = relation_plans.rename(source, target, kind, entry, namespace, there, is_forced)
            return Step(planned, None, was_done=self.was_dropped(source, entry))

        async def again(_: RequestResult) -> None:
            return None

        turns = [catalog_keys.relation_key(source), catalog_keys.relation_key(target)]
        await self._steps.make(turns, plan, request, again)
