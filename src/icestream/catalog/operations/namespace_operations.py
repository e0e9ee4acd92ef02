"""Operations on namespaces.

Every namespace has a `location`, below which engines place its tables: its own property, or else its place in the
warehouse. The latter is not stored, because a warehouse may be moved. Trino needs it: without a location it lets the
catalog create the table, and then refuses the table's location because it is not empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.idempotency import RELOAD_HINT, IdempotentRequest, RequestResult
from icestream.catalog.plans import namespace_plans
from icestream.catalog.plans.namespace_plans import LOCATION, PropertyChanges
from icestream.catalog.transactions import Attempt, TransactionGuard, TransactionRunner
from icestream.iceberg.identifier import Namespace
from icestream.iceberg.location import is_inside, namespace_location, normalize_or_none
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry

VisibleNamespaces = Callable[[Sequence[Namespace]], Awaitable[list[bool]]]


class NamePage(NamedTuple):
    """One page of a listing."""

    names: list[str]
    token: str | None  # of the next page; None: this is the last one


class NamespaceOperations:
    """The operations of clients on namespaces."""

    def __init__(self, runner: TransactionRunner, warehouse: str) -> None:
        self._runner = runner
        self._store = runner.store
        self._warehouse = warehouse

    async def load(self, namespace: Namespace) -> dict[str, str]:
        """Returns the properties of a namespace, with its location. Raises UnknownNamespace."""
        entry = await self._store.get(catalog_keys.namespace_key(namespace))
        return self._with_location(namespace, namespace_plans.existing(namespace, entry).properties)

    def _with_location(self, namespace: Namespace, properties: Mapping[str, str]) -> dict[str, str]:
        return {LOCATION: namespace_location(self._warehouse, namespace), **properties}

    async def list(
        self, parent: Namespace, token: str | None, size: int | None, is_visible: VisibleNamespaces | None = None
    ) -> NamePage:
        """Returns the names of the namespaces directly in `parent`; () is the root. Without a token: all of them.
        `is_visible`: which of them the client may see; None: all."""
        if parent:
            await self.load(parent)
        prefix = catalog_keys.namespaces_in(parent)
        count_max = None if token is None else page_size(size)
        after = catalog_keys.key_after(prefix, token or "")
        names: list[str] = []
        while entries := await self._store.list(prefix, after, page_limit(count_max, len(names))):
            page = [catalog_keys.last_name(prefix, key) for key, _ in entries]
            visibility = (
                [True] * len(page) if is_visible is None else await is_visible([(*parent, name) for name in page])
            )
            for name, is_shown in zip(page, visibility, strict=True):
                if is_shown and len(names) == count_max:
                    return NamePage(names, catalog_keys.page_token(names[-1]))
                if is_shown:
                    names.append(name)
            after = entries[-1][0]
        return NamePage(names, None)

    async def create(
        self,
        namespace: Namespace,
        properties: Mapping[str, str],
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> dict[str, str]:
        """Creates a namespace; returns its properties with its location. Raises AlreadyExists, and UnknownNamespace for
        a missing parent."""
        key, parent = catalog_keys.namespace_key(namespace), namespace[:-1]
        new_id = self._runner.documents.new_uuid()

        async def plan() -> Attempt[dict[str, str]]:
            parent_entry = await self._store.get(catalog_keys.namespace_key(parent)) if parent else None
            entry = await self._store.get(key)
            transaction = namespace_plans.create(namespace, properties, new_id, entry, parent_entry)
            return Attempt(transaction, self._with_location(namespace, properties), is_create=True)

        async def answer_repeat(_: RequestResult) -> dict[str, str]:
            return self._with_location(namespace, properties)

        return await self._runner.run_until_applied([key], plan, request, answer_repeat, guard)

    async def change_properties(
        self,
        namespace: Namespace,
        updates: Mapping[str, str],
        removals: Sequence[str],
        request: IdempotentRequest | None = None,
        guard: TransactionGuard | None = None,
    ) -> PropertyChanges:
        """Sets and removes properties; returns which were set, removed, and missing. Raises UnknownNamespace,
        Contradiction."""
        key = catalog_keys.namespace_key(namespace)

        async def plan() -> Attempt[PropertyChanges]:
            entry = await self._store.get(key)
            transaction, changes = namespace_plans.change_properties(namespace, updates, removals, entry)
            return Attempt(
                transaction,
                changes,
                was_applied=self._were_properties_changed(namespace, entry),
                request_result=RequestResult(removed=changes.removed),
                unchanged=[cmd.HasValue(key, entry.value)] if entry else [],
            )

        async def answer_repeat(request_result: RequestResult) -> PropertyChanges:
            missing = [name for name in dict.fromkeys(removals) if name not in request_result.removed]
            return PropertyChanges([*updates], [*request_result.removed], missing)

        return await self._runner.run_until_applied([key], plan, request, answer_repeat, guard)

    def _were_properties_changed(self, namespace: Namespace, before: Entry | None) -> Callable[[], Awaitable[bool]]:
        """Returns a check after a lost reply: False if the record has the old value, so that only its revision was
        raised by what was created in the namespace since."""

        async def check() -> bool:
            entry = await self._store.get(catalog_keys.namespace_key(namespace))
            if before is None or entry is None or entry.value != before.value:
                raise errors.OutcomeUnknown("the namespace was changed by another client meanwhile", hint=RELOAD_HINT)
            return False

        return check

    async def drop(self, namespace: Namespace, request: IdempotentRequest | None = None) -> None:
        """Drops a namespace. Raises NotEmpty and UnknownNamespace."""
        key = catalog_keys.namespace_key(namespace)

        async def plan() -> Attempt[None]:
            entry = await self._store.get(key)
            transaction = namespace_plans.drop(namespace, entry, await self._is_empty(namespace))
            # Planning again is safe: a namespace of the same name that was created since has another id.
            return Attempt(transaction, None, is_create=True)

        async def answer_repeat(_: RequestResult) -> None:
            return None

        await self._runner.run_until_applied([key], plan, request, answer_repeat)

    async def _is_empty(self, namespace: Namespace) -> bool:
        """Must be called after the namespace's entry was read: whatever is created later changes that entry."""
        for prefix in (catalog_keys.namespaces_in(namespace), catalog_keys.relations_in(namespace)):
            if await self._store.list(prefix, limit=1):
                return False
        return True


def table_base(namespace: Namespace, properties: Mapping[str, str], warehouse: str, roots: Sequence[str]) -> str:
    """Returns the location below which new tables of a namespace lie: the `location` property of the namespace if that
    is inside one of the roots, else its place in the warehouse."""
    location = normalize_or_none(properties.get(LOCATION, ""))
    if location is not None and any(is_inside(location, root) for root in roots):
        return location
    return namespace_location(warehouse, namespace)


def page_limit(count_max: int | None, count: int) -> int:
    """Returns how many entries to read for a page of `count_max` names that has `count`: one more than it takes, which
    tells whether there is a next page."""
    return limits.METADATA_LIST_MAX if count_max is None else min(count_max + 1 - count, limits.METADATA_LIST_MAX)


def page_size(size: int | None) -> int:
    if size is None:
        return limits.CATALOG_PAGE_DEFAULT
    if size < 1:
        raise errors.InvalidInput(f"page size must be at least 1, got {size}")
    return min(size, limits.CATALOG_PAGE_MAX)
