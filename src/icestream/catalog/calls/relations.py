"""What tables and views have in common: reading their records and documents, listing, renaming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from icestream import errors
from icestream.catalog import keys, records
from icestream.catalog.calls.namespaces import Page, page_size
from icestream.catalog.calls.steps import Step, Steps
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.plan import namespaces, relations
from icestream.catalog.requests import Noted, RequestName
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.metadata.entry import Entry

Document = TypeVar("Document")


class Relations:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._store = steps.store

    async def entry(self, identifier: Identifier) -> Entry | None:
        return await self._store.get(keys.relation_key(identifier))

    async def namespace(self, namespace: Namespace) -> Entry | None:
        return await self._store.get(keys.namespace_key(namespace))

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

    async def list(self, namespace: Namespace, kind: str, token: str | None, size: int | None) -> Page:
        """The names of all tables, or of all views, in a namespace."""
        namespaces.existing(namespace, await self.namespace(namespace))
        prefix = keys.relations_in(namespace)
        wanted = None if token is None else page_size(size)
        after = keys.key_after(prefix, token or "")
        names: list[str] = []
        while found := await self._store.list(prefix, after):
            for key, entry in found:
                if relations.kind_of(records.decode_relation(key, entry)) == kind:
                    if len(names) == wanted:
                        return Page(names, keys.page_token(names[-1]))
                    names.append(keys.last_name(prefix, key))
            after = found[-1][0]
        return Page(names, None)

    async def rename(
        self,
        source: Identifier,
        target: Identifier,
        kind: str,
        is_forced: bool = False,
        request: RequestName | None = None,
    ) -> None:
        async def plan() -> Step[None]:
            entry, namespace = await self.entry(source), await self.namespace(target.namespace)
            there = await self.entry(target)
            planned = relations.rename(source, target, kind, entry, namespace, there, is_forced)
            return Step(planned, None, was_done=self.was_dropped(source, entry))

        async def again(_: Noted) -> None:
            return None

        turns = [keys.relation_key(source), keys.relation_key(target)]
        await self._steps.make(turns, plan, request, again)
