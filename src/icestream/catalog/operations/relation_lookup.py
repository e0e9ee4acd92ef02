"""Reads the records and documents of tables and views; lists and renames both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import Relation
from icestream.catalog.idempotency import RELOAD_HINT, IdempotentRequest, RequestResult
from icestream.catalog.operations.namespace_operations import NamePage, page_size
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.catalog.transactions import Attempt, TransactionRunner
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.metadata.entry import Entry

Document = TypeVar("Document")
VisibleRelations = Callable[[Sequence[tuple[Identifier, Relation]]], Awaitable[list[bool]]]


class RelationLookup:
    """What the operations on tables and on views share."""

    def __init__(self, runner: TransactionRunner) -> None:
        self._runner = runner
        self._store = runner.store

    async def entry(self, identifier: Identifier) -> Entry | None:
        """The record of a table or view in the metadata store; None if the name is free."""
        return await self._store.get(catalog_keys.relation_key(identifier))

    async def namespace(self, namespace: Namespace) -> Entry | None:
        """The record of a namespace; None if it does not exist."""
        return await self._store.get(catalog_keys.namespace_key(namespace))

    async def document(
        self, location: str, current_location: Callable[[], Awaitable[str]], read: Callable[[str], Awaitable[Document]]
    ) -> tuple[str, Document]:
        """Reads the metadata file of a pointer; returns its location and content.

        A file may be removed after its pointer moved on: then the current one is read. Raises MetadataFileMissing if
        the pointer leads to a file that does not exist.
        """
        while True:
            try:
                return location, await read(location)
            except errors.MetadataFileMissing:
                new_location = await current_location()
                if new_location == location:
                    raise
                location = new_location

    def was_dropped(self, identifier: Identifier, before: Entry | None) -> Callable[[], Awaitable[bool]]:
        """Returns a check after a lost reply to a drop or rename: False if the name still leads to what was read
        before."""

        async def check() -> bool:
            entry = await self.entry(identifier)
            if before is None or entry is None or entry.create_revision != before.create_revision:
                # Another process may have created the name anew, which must not be dropped.
                raise errors.OutcomeUnknown(
                    f"{identifier} does not exist any more, or was created anew by another client", hint=RELOAD_HINT
                )
            return False

        return check

    async def list(
        self,
        namespace: Namespace,
        kind: str,
        token: str | None,
        size: int | None,
        is_visible: VisibleRelations | None = None,
    ) -> NamePage:
        """Lists the names of all tables, or of all views, in a namespace. `is_visible`: which of them the client may
        see; None: all. Raises UnknownNamespace."""
        namespace_plans.existing(namespace, await self.namespace(namespace))
        prefix = catalog_keys.relations_in(namespace)
        # The protocol: a client that sends no token does not know pages, and gets all names at once.
        count_max = None if token is None else page_size(size)
        after = catalog_keys.key_after(prefix, token or "")
        names: list[str] = []
        while entries := await self._store.list(prefix, after):
            page = [
                (Identifier(namespace, catalog_keys.last_name(prefix, key)), record)
                for key, entry in entries
                if relation_plans.kind_of(record := catalog_records.decode_relation(key, entry)) == kind
            ]
            visibility = [True] * len(page) if is_visible is None else await is_visible(page)
            for (identifier, _), is_shown in zip(page, visibility, strict=True):
                # The token is a name that is shown: it must not tell a hidden one.
                if is_shown and len(names) == count_max:
                    return NamePage(names, catalog_keys.page_token(names[-1]))
                if is_shown:
                    names.append(identifier.name)
            after = entries[-1][0]
        return NamePage(names, None)

    async def rename(
        self,
        source: Identifier,
        target: Identifier,
        kind: str,
        is_forced: bool = False,
        request: IdempotentRequest | None = None,
    ) -> None:
        """Renames a table or view. Raises AlreadyExists, UnknownTable or UnknownView, UnknownNamespace of the
        target."""

        async def plan() -> Attempt[None]:
            entry, namespace = await self.entry(source), await self.namespace(target.namespace)
            target_entry = await self.entry(target)
            transaction = relation_plans.rename(source, target, kind, entry, namespace, target_entry, is_forced)
            return Attempt(transaction, None, was_applied=self.was_dropped(source, entry))

        async def answer_repeat(_: RequestResult) -> None:
            return None

        lock_keys = [catalog_keys.relation_key(source), catalog_keys.relation_key(target)]
        await self._runner.run_until_applied(lock_keys, plan, request, answer_repeat)
