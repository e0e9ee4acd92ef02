"""What clients ask about namespaces.

Every namespace has a `location`, below which engines place its tables: its own property, or else its place in the
warehouse, which is not stored: a warehouse may be moved. Trino cannot create tables in a namespace without one: it lets
the catalog make the table, and then refuses a location that is not empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.idempotency import IdempotentRequest, RequestResult
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.plans import namespace_plans
from icestream.catalog.plans.namespace_plans import PropertyChanges
from icestream.catalog.transactions import Step, Steps
from icestream.iceberg.identifier import Namespace
from icestream.iceberg.location import is_inside, namespace_location, normalize_or_none
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore

LOCATION: Final = "location"


class NamePage(NamedTuple):
    """`token`: of the next one, None at the end."""

    names: list[str]
    token: str | None


class NamespaceOperations:
    def __init__(self, steps: Steps, warehouse: str) -> None:
        self._steps = steps
        self._store = steps.store
        self._warehouse = warehouse

    async def load(self, namespace: Namespace) -> dict[str, str]:
        """Its properties, with its location."""
        entry = await self._store.get(catalog_keys.namespace_key(namespace))
        return self._located(namespace, namespace_plans.existing(namespace, entry).properties)

    def _located(self, namespace: Namespace, properties: Mapping[str, str]) -> dict[str, str]:
        return {LOCATION: namespace_location(self._warehouse, namespace), **properties}

    async def list(self, parent: Namespace, token: str | None, size: int | None) -> NamePage:
        """The levels directly in another namespace; () is the root. Without a token: all of them."""
        if parent:
            await self.load(parent)
        prefix = catalog_keys.namespaces_in(parent)
        return await page(self._store, prefix, token, size)

    async def create(
        self, namespace: Namespace, properties: Mapping[str, str], request: IdempotentRequest | None = None
    ) -> dict[str, str]:
        key, above = catalog_keys.namespace_key(namespace), namespace[:-1]
        new_id = self._steps.documents.new_uuid()

        async def plan() -> Step[dict[str, str]]:
            parent = await self._store.get(catalog_keys.namespace_key(above)) if above else None
            found = await self._store.get(key)
            planned = namespace_plans.create(namespace, properties, new_id, found, parent)
            return Step(planned, self._located(namespace, properties), is_once=True)

        async def again(_: RequestResult) -> dict[str, str]:
            return self._located(namespace, properties)

        return await self._steps.make([key], plan, request, again)

    async def change_properties(
        self,
        namespace: Namespace,
        updates: Mapping[str, str],
        removals: Sequence[str],
        request: IdempotentRequest | None = None,
    ) -> PropertyChanges:
        key = catalog_keys.namespace_key(namespace)

        async def plan() -> Step[PropertyChanges]:
            found = await self._store.get(key)
            planned, answer = namespace_plans.change_properties(namespace, updates, removals, found)
            was_done, noted = self._were_changed(namespace, found), RequestResult(removed=answer.removed)
            unchanged = [cmd.HasValue(key, found.value)] if found else []
            return Step(planned, answer, was_done=was_done, noted=noted, unchanged=unchanged)

        async def again(noted: RequestResult) -> PropertyChanges:
            missing = [name for name in dict.fromkeys(removals) if name not in noted.removed]
            return PropertyChanges([*updates], [*noted.removed], missing)

        return await self._steps.make([key], plan, request, again)

    def _were_changed(self, namespace: Namespace, before: Entry | None) -> Callable[[], Awaitable[bool]]:
        """By a step after which others went on. If its value is what it was, things were made in it, and no more."""

        async def look() -> bool:
            now = await self._store.get(catalog_keys.namespace_key(namespace))
            if before is None or now is None or now.value != before.value:
                raise errors.OutcomeUnknown("others changed the namespace meanwhile", hint=LOOK_FIRST)
            return False

        return look

    async def drop(self, namespace: Namespace, request: IdempotentRequest | None = None) -> None:
        key = catalog_keys.namespace_key(namespace)

        async def plan() -> Step[None]:
            found = await self._store.get(key)
            planned = namespace_plans.drop(namespace, found, await self._is_empty(namespace))
            return Step(planned, None, is_once=True)  # the one that is there has an id of its own

        async def again(_: RequestResult) -> None:
            return None

        await self._steps.make([key], plan, request, again)

    async def _is_empty(self, namespace: Namespace) -> bool:
        """Looked at after its entry was read: whatever is made later changes that entry."""
        for prefix in (catalog_keys.namespaces_in(namespace), catalog_keys.relations_in(namespace)):
            if await self._store.list(prefix, limit=1):
                return False
        return True


def table_base(namespace: Namespace, properties: Mapping[str, str], warehouse: str, roots: Sequence[str]) -> str:
    """The location below which new tables of a namespace lie: its own where that is inside of one of the roots."""
    own = normalize_or_none(properties.get(LOCATION, ""))
    if own is not None and any(is_inside(own, root) for root in roots):
        return own
    return namespace_location(warehouse, namespace)


async def page(store: MetadataStore, prefix: str, token: str | None, size: int | None) -> NamePage:
    """Names below a prefix."""
    if token is None:
        return NamePage([catalog_keys.last_name(prefix, key) for key, _ in await store.list_all(prefix)], None)
    wanted = page_size(size)
    names: list[str] = []
    after = catalog_keys.key_after(prefix, token)
    while len(names) < wanted:
        found = await store.list(prefix, after, min(wanted - len(names), limits.METADATA_LIST_MAX))
        names += (catalog_keys.last_name(prefix, key) for key, _ in found)
        if not found:
            return NamePage(names, None)
        after = found[-1][0]
    return NamePage(names, catalog_keys.page_token(names[-1]))


def page_size(size: int | None) -> int:
    if size is None:
        return limits.CATALOG_PAGE_DEFAULT
    if size < 1:
        raise errors.InvalidInput(f"a page of {size} items")
    return min(size, limits.CATALOG_PAGE_MAX)
