"""What a caller needs in order to use the embedded catalog: actions on resources, asked of the broker (ADR 57).

    a table bound to a topic        the resource of the topic, on every protocol (hazard 110)
    one that was, and is kept       both: the topic that it was of, and table:/LEVELS/NAME. Rights to ordinary tables do
                                    not open the messages of a deleted topic, nor do those to a new topic of its name
                                    (hazard 117)
    another table, a view           table:/LEVELS/NAME
    a namespace                     namespace:/LEVELS; visible also with the right to see something in it

Everything that a call touches is asked for before the first document or file is read. What a caller may not describe
does not exist for it: the error is that of an absent name, byte for byte (hazard 123). A caller without a credential is
told that it needs one, wherever the name is not visible, whether it exists or not.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import Relation, TableRecord
from icestream.catalog.idempotency import IdempotentRequest
from icestream.catalog.plans import namespace_plans, relation_plans
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.lake.request_caller import RequestCaller, Right
from icestream.model.topic_name import TopicName
from icestream.security.action import Action
from icestream.security.resource import (
    CLUSTER,
    Resource,
    namespace_resource,
    table_resource,
    topic_resource,
)

Actions = Sequence[Action]
_DESCRIBE: Final = Action.DESCRIBE
_ABSENT: Final = {relation_plans.TABLE: relation_plans.table_of, relation_plans.VIEW: relation_plans.view_of}


def name_resource(identifier: Identifier) -> Resource:
    """The resource of a name that no table has, or a table that is no topic's."""
    return table_resource((*identifier.namespace, identifier.name))


def relation_resources(identifier: Identifier, record: Relation | None) -> list[Resource]:
    """The resources of a table or view with this record, to all of which a request needs the right; None: nothing has
    the name."""
    if isinstance(record, TableRecord) and record.binding is not None:
        return [topic_resource(TopicName.parse(record.binding.topic))]
    if isinstance(record, TableRecord) and record.former_topic:
        return [topic_resource(TopicName.parse(record.former_topic)), name_resource(identifier)]
    return [name_resource(identifier)]


class CatalogRights:
    """The rights of one caller in the catalog."""

    def __init__(self, catalog: Catalog, caller: RequestCaller) -> None:
        self._catalog = catalog
        self.caller = caller

    # --- what a request needs ---

    async def require_namespace(self, namespace: Namespace, *actions: Action, more: Iterable[Right] = ()) -> None:
        """`more`: rights that the request needs besides. Raises UnknownNamespace for one that is not visible,
        PermissionDenied, Unauthenticated."""
        resource = namespace_resource(*namespace)
        described, *decisions = await self.caller.allows([(action, resource) for action in (_DESCRIBE, *actions)])
        if not described and not (decisions and all(decisions)):
            await self._record_hidden(resource)
            if self.caller.is_anonymous:
                raise self.caller.unauthenticated()
            namespace_plans.existing(namespace, None)
        await self.caller.require([*((action, resource) for action in actions), *more])

    async def require_new(self, identifier: Identifier) -> None:
        """To create a table or view of this name."""
        await self.caller.require([(Action.CREATE, name_resource(identifier))])

    async def require_new_namespace(self, namespace: Namespace) -> None:
        await self.caller.require([(Action.CREATE, namespace_resource(*namespace))])

    async def require_administrator(self) -> None:
        await self.caller.require([(Action.ADMIN, CLUSTER)])

    async def exists(self, identifier: Identifier) -> bool:
        """Whether a table has the name."""
        return await self._record(identifier, relation_plans.TABLE) is not None

    async def sees_anything(self) -> bool:
        """Whether a namespace of the first level is visible."""
        page = await self._catalog.namespaces.list((), "", 1, self.visible_namespaces)
        return bool(page.names)

    async def is_administrator(self) -> bool:
        return (await self.caller.allows([(Action.ADMIN, CLUSTER)]))[0]

    async def require_relation(
        self,
        identifier: Identifier,
        *actions: Action,
        kind: str = relation_plans.TABLE,
        more: Iterable[Right] = (),
        repeat: IdempotentRequest | None = None,
    ) -> Relation | None:
        """As `require_relations`, for one table or view."""
        return (await self.require_relations({identifier: actions}, kind, more, repeat))[identifier]

    async def require_relations(
        self,
        needed: Mapping[Identifier, Actions],
        kind: str = relation_plans.TABLE,
        more: Iterable[Right] = (),
        repeat: IdempotentRequest | None = None,
    ) -> dict[Identifier, Relation | None]:
        """To do this to existing tables or views; `more`: rights that the request needs besides. Returns their records;
        None only for a name that is gone because of this request itself, which then is a `repeat`.

        Raises UnknownTable or UnknownView for one that is absent or not visible, PermissionDenied, Unauthenticated.
        """
        records = {identifier: await self._record(identifier, kind) for identifier in needed}
        resources = {identifier: relation_resources(identifier, records[identifier]) for identifier in needed}
        existing = {identifier for identifier, record in records.items() if record is not None}
        await self._require(needed, resources, existing, kind, more, repeat)
        return records

    async def require_resources(
        self, identifier: Identifier, resources: Sequence[Resource], *actions: Action, exists: bool
    ) -> None:
        """As `require_relation`, for a table of a view, whose resources the view knows: no record of today has them.
        Raises UnknownTable, PermissionDenied, Unauthenticated."""
        existing = {identifier} if exists else set[Identifier]()
        await self._require({identifier: actions}, {identifier: resources}, existing, relation_plans.TABLE)

    async def _require(
        self,
        needed: Mapping[Identifier, Actions],
        resources: Mapping[Identifier, Sequence[Resource]],
        existing: Container[Identifier],
        kind: str,
        more: Iterable[Right] = (),
        repeat: IdempotentRequest | None = None,
    ) -> None:
        """The decision of `require_relations`. `resources`: of each table; `existing`: those that are there."""
        own: list[Right] = []
        rights: list[Right] = []
        for identifier, actions in needed.items():
            of_actions = [(action, resource) for action in actions for resource in resources[identifier]]
            rights += [(_DESCRIBE, name_resource(identifier))]
            rights += [*((_DESCRIBE, resource) for resource in resources[identifier]), *of_actions]
            own += of_actions
        # Not recorded as denials: a caller with rights to a topic need not have any to the name of its table.
        answers = iter(await self.caller.allows(rights))
        for identifier, actions in needed.items():
            is_named = next(answers)
            is_described = all(list(islice(answers, len(resources[identifier]))))
            has_all = list(islice(answers, len(actions) * len(resources[identifier])))
            is_visible = is_described or (bool(has_all) and all(has_all))
            if identifier not in existing and repeat is not None and await self._is_done(repeat):
                continue
            if identifier not in existing or not is_visible:
                await self._record_hidden(*resources[identifier])
                # The name is absent, or hidden: the same answer, by the rights to the name alone.
                if self.caller.is_anonymous and not is_named:
                    raise self.caller.unauthenticated()
                _ABSENT[kind](identifier, None)
        await self.caller.require([*own, *more])

    async def _record_hidden(self, *resources: Resource) -> None:
        """A request for what is not visible is a denial of the audit, although its answer does not say so."""
        await self.caller.decide([(_DESCRIBE, resource) for resource in resources])

    async def _is_done(self, repeat: IdempotentRequest) -> bool:
        return await self._catalog.store.get(repeat.key) is not None

    async def _record(self, identifier: Identifier, kind: str) -> Relation | None:
        entry = await self._catalog.relations.entry(identifier)
        if entry is None:
            return None
        record = catalog_records.decode_relation(catalog_keys.relation_key(identifier), entry)
        return record if relation_plans.kind_of(record) == kind else None

    # --- what a listing shows ---

    async def visible_relations(self, relations: Sequence[tuple[Identifier, Relation]]) -> list[bool]:
        return await self.visible_resources(
            [relation_resources(identifier, record) for identifier, record in relations]
        )

    async def visible_resources(self, groups: Sequence[Sequence[Resource]]) -> list[bool]:
        """Whether the caller may describe all resources of each group."""
        answers = iter(await self.caller.allows([(_DESCRIBE, resource) for group in groups for resource in group]))
        return [all(list(islice(answers, len(group)))) for group in groups]

    async def visible_namespaces(self, namespaces: Sequence[Namespace]) -> list[bool]:
        return await self.caller.allows([(_DESCRIBE, namespace_resource(*namespace)) for namespace in namespaces])
