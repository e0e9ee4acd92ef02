"""Where a message is stored: MQTT topics are routed to few Icestream topics, by the first filter that matches. Pure.

    route     filter, minimum QoS, topic; in the order of the settings
    default   the topic of the last route: for what must be stored and matches no route (a durable subscription of a
              topic that no route names)
    shard     crc32(topic) mod shards, as the native client chooses by key: a topic has all its rows in one shard, so
              its messages have one order, and a last value

One publish is one route, one shard, one row (hazard 63). The number of shards of a topic is fixed when its route
creates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from icestream import limits
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.mqtt.mqtt_options import ReplayRoute
from icestream.model.shard import ShardKey
from icestream.mqtt.topics import matches


class RouteTarget(NamedTuple):
    """A topic of a route, and its shards in order."""

    topic: BrokerTopic
    keys: tuple[ShardKey, ...]

    @property
    def native_topic(self) -> str:
        """The MQTT topic of a message whose key is none: the name of the topic without its first slash."""
        return str(self.topic.name).removeprefix("/")


class TopicRoute(NamedTuple):
    """Where messages of one MQTT topic are stored, and from which QoS on a route stores them (3: never by itself)."""

    target: RouteTarget
    key: ShardKey
    min_qos: int


NEVER_BY_ROUTE = 3


class RouteTable:
    """The routes of a node with their topics. Results are cached by topic, within a bound."""

    def __init__(self, routes: Iterable[tuple[ReplayRoute, RouteTarget]]) -> None:
        """`routes`: at least one; the target of the last is the default."""
        self._routes = tuple(routes)
        self._cache: dict[str, TopicRoute] = {}

    @property
    def targets(self) -> Sequence[RouteTarget]:
        """The topics of all routes, each once."""
        return list({target.topic.name: target for _, target in self._routes}.values())

    @property
    def has_catch_all(self) -> bool:
        """True if the first route is `#`: it takes every topic that does not begin with `$`."""
        return self._routes[0][0].filter == "#"

    def route_of(self, topic: str) -> TopicRoute:
        """The route of a valid topic name."""
        route = self._cache.get(topic)
        if route is None:
            if len(self._cache) >= limits.MQTT_TOPICS_CACHED:
                self._cache.clear()
            route = self._cache[topic] = self._find(topic)
        return route

    def _find(self, topic: str) -> TopicRoute:
        min_qos, target = NEVER_BY_ROUTE, self._routes[-1][1]
        for route, candidate in self._routes:
            if matches(route.filter, topic):
                min_qos, target = route.min_qos, candidate
                break
        shard = crc32(topic.encode()) % len(target.keys)
        return TopicRoute(target, target.keys[shard], min_qos)
