"""What the routes of /api/v1/lake need. As in the catalog (catalog_rights.py), for tables of any catalog.

the embedded catalog    a table bound to a topic is the topic's resource
another catalog         its own rights protect its tables; an operation of ours needs the right to the topic, and
                        the right to `table:/LEVELS/NAME` beside it
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors
from icestream.iceberg.identifier import Identifier
from icestream.lake.catalog_rights import CatalogRights, name_resource
from icestream.lake.request_caller import RequestCaller, Right
from icestream.model.topic_name import TopicName
from icestream.security.action import Action
from icestream.security.resource import CLUSTER, topic_resource


class TableRights:
    """The rights of the caller of a request to tables and their topics. Everything is allowed while security is off."""

    def __init__(self, caller: RequestCaller, catalog: CatalogRights | None) -> None:
        """`catalog`: rights in the embedded catalog; None: this node has none."""
        self._caller = caller
        self._catalog = catalog

    async def require_cluster(self, action: Action) -> None:
        await self._caller.require([(action, CLUSTER)])

    async def require_topic(self, topic: str, *actions: Action) -> None:
        """Raises UnknownTopic for a topic that is not visible, PermissionDenied, Unauthenticated."""
        if not self._caller.is_secured:
            return
        name = TopicName.parse(topic)
        resource = topic_resource(name)
        described, *allowed = await self._caller.allows([(action, resource) for action in (Action.DESCRIBE, *actions)])
        if not described and not (allowed and all(allowed)):
            await self._caller.decide([(Action.DESCRIBE, resource)])  # for the audit
            if self._caller.is_anonymous:
                raise self._caller.unauthenticated()
            # As the broker says it of a topic that does not exist (broker/topic_registry.py).
            raise errors.UnknownTopic(f"there is no topic {name}", hint="create it, or publish to it once")
        await self._caller.require([(action, resource) for action in actions])

    async def require_table(self, table: Identifier, *actions: Action, more: list[Right] | None = None) -> None:
        """Raises UnknownTable for a table that is absent or not visible, PermissionDenied, Unauthenticated."""
        if not self._caller.is_secured:
            return
        if self._catalog is None:
            await self._caller.require([*((action, name_resource(table)) for action in actions), *(more or ())])
        else:
            await self._catalog.require_relation(table, *actions, more=more or ())

    async def require_binding(self, table: Identifier, topic: str) -> None:
        """Requires the rights to bind a table to a topic: consumers of the topic then read the table, and its producers
        fill it. Raises PermissionDenied."""
        if not self._caller.is_secured:
            return
        await self.require_topic(topic, Action.ALTER)
        await self.require_table(table, Action.TABLE_WRITE, Action.TABLE_READ)

    async def require_new_table(self, topic: str, table: Identifier | None) -> None:
        """To create a table for a topic; `table`: its name, None: the one that belongs to the topic."""
        if not self._caller.is_secured:
            return
        await self.require_topic(topic, Action.ALTER, Action.TABLE_WRITE)
        if table is not None:
            await self._caller.require([(Action.CREATE, name_resource(table))])

    async def require_listing(self) -> None:
        """Raises Unauthenticated for a caller without a credential that no grant lets see anything: its empty listing
        would read as a lake without tables."""
        if not self._caller.is_secured or not self._caller.is_anonymous:
            return
        if self._catalog is None:
            sees_anything = (await self._caller.allows([(Action.DESCRIBE, CLUSTER)]))[0]
        else:
            sees_anything = await self._catalog.sees_anything()
        if not sees_anything:
            raise self._caller.unauthenticated()

    async def visible_topics(self, topics: Sequence[str]) -> list[bool]:
        """Which of these topics a listing shows; one whose record cannot be read has no name, and is not shown."""
        if not self._caller.is_secured:
            return [True] * len(topics)
        names = [None if topic == "?" else TopicName.parse(topic) for topic in topics]
        rights: list[Right] = [(Action.DESCRIBE, CLUSTER if name is None else topic_resource(name)) for name in names]
        return await self._caller.allows(rights)
