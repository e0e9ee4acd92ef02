"""A whole node with accounts, for the matrix of rights: three principals try each call of each surface.

    nobody      has no right
    neighbour   has the rights of the call on everything else: another topic, another namespace, all but the cluster
    weaker-N    has all of the rights but one action, in place of which it has every other action on that resource
    exact       has the rights of the call, and nothing more
    anonymous   has no credential

The node has the topics /shop/orders and /shop/other with the subscription `old`, the empty namespace `spare`, and the
schemas `orders` and `other`. With MQTT, the topic orders/1 has a retained message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from icestream import errors
from icestream.frontends.native.native_front_end import NativeFrontEnd
from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.handshake import Hello, HelloCredential
from icestream.rpc.link import Link, open_link
from icestream.runtime.randomness import SystemRandomness
from icestream.schema.kinds import SchemaType
from icestream.security import security_records as records
from icestream.security.action import GROUPS
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.principal import service_account
from tests.support.mqtt_world import connected
from tests.support.node_settings import node_settings

ORDERS, OTHER = TopicName("shop", "orders"), TopicName("shop", "other")
EVERYTHING_ELSE: Final = (
    "all on /*/*", "all on namespace:/**", "all on schema:/*", "all on table:/**", "all on mqtt:#",
)  # fmt: skip
ALLOWED: Final = "allowed"
# Of a principal that wrote the audit's topic, and of the counters of ids: not of the calls that are tried.
_OWN_RECORDS: Final = ("audit", "/counters/", "/ids/")


def neighbour_of(rules: Sequence[str]) -> list[str]:
    """The same rights on everything but what the rules name."""
    neighbours: list[str] = []
    for rule in rules:
        actions, _, resource = rule.partition(" on ")
        if resource == "cluster":
            weaker = "all on cluster" if actions == "admin" else "produce on cluster"
            neighbours += [*EVERYTHING_ELSE, weaker] if actions != "describe" else EVERYTHING_ELSE
        else:
            place = resource.replace("namespace:/shop", "namespace:/other").replace("namespace:/spare", "namespace:/x")
            place = place.replace("orders", "other").replace("/new", "/other")
            assert place != resource, f"{resource} has no neighbour"
            neighbours.append(f"{actions} on {place}")
    return neighbours


def weaker_of(rules: Sequence[str]) -> list[list[str]]:
    """The rules with each action missing once. None for `describe`, which every other action includes."""
    weaker: list[list[str]] = []
    for number, rule in enumerate(rules):
        actions, _, resource = rule.partition(" on ")
        for missing in actions.split(","):
            others = ",".join(sorted(action.value for action in GROUPS["all"] if action.value != missing))
            if missing != "describe":
                weaker.append([*rules[:number], f"{others} on {resource}", *rules[number + 1 :]])
    return weaker


class AccessWorld:
    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.strangers: list[str] = []  # that may not make the call
        self._links: list[Link] = []

    async def secure(self, rules: Sequence[str], neighbours: Sequence[str] | None = None) -> None:
        """Switches security on; `exact` has the rules, `neighbour` the same elsewhere."""
        node, randomness = self.node, SystemRandomness()
        await node.broker.create_namespace("shop")
        await node.broker.create_namespace("spare")
        for name in (ORDERS, OTHER):
            await node.broker.create_topic(name)
            await node.broker.create_subscription(name, "old", SubscriptionType.SHARED)
            await node.broker.schemas.register(name.name, SchemaType.STRING, b"")
        wrapping_key = create_wrapping_key(node.settings.data_dir, randomness)
        ring = KeyRing.new(randomness, node.clock.wall_us()).encode(wrapping_key, randomness)
        await node.security.init("root", "hash", ring)
        of_neighbour = neighbour_of(rules) if neighbours is None else neighbours
        callers: dict[str, Sequence[str]] = {"nobody": (), "neighbour": of_neighbour}
        callers |= {f"weaker-{number}": texts for number, texts in enumerate(weaker_of(rules))}
        self.strangers = ["anonymous", *callers]
        for name, texts in {**callers, "exact": rules}.items():
            await node.security.create_service(name)
            if texts:
                await node.security.put_role(name, [_rule(text) for text in texts])
                await node.security.grant(service_account(name), name)

    async def retain(self, topic: str) -> None:
        """Publishes a retained message by MQTT, from before there were accounts."""
        client = await connected(self.node.broker, "before", access=self.node.access_control)
        await client.publish(topic, b"retained", is_retained=True)

    def token(self, name: str) -> str:
        """The token of a service account; empty for `anonymous`."""
        if name == "anonymous":
            return ""
        generation = self.node.policy_watch.find_service(name)
        assert generation is not None
        return self.node.service_tokens.mint(service_account(name), generation, [], 600).token

    async def link(self, name: str, listener: str = "local") -> Link:
        """A connection of a caller, to the local socket or to `native`, which is TCP."""
        token = self.token(name)
        credential = HelloCredential(token=token) if token else None
        if listener == "local":
            return await self.connect(credential)
        link = Link(Hello(client="test", credential=credential))
        port = self.node.services.front_end(NativeFrontEnd).port
        await asyncio.get_running_loop().create_connection(lambda: link, "127.0.0.1", port)
        await link.opened
        self._links.append(link)
        return link

    async def connect(self, credential: HelloCredential | None) -> Link:
        link = await open_link(self.node.settings.local_socket, "test", credential)
        self._links.append(link)
        return link

    async def records(self) -> dict[str, bytes]:
        """What the calls that are tried could change."""
        return {
            key: entry.value
            for key, entry in await self.node.store.list_all("/")
            if not any(part in key for part in _OWN_RECORDS)
        }

    async def close(self) -> None:
        for link in self._links:
            link.close()
        await self.node.stop()


def _rule(text: str) -> records.RuleRecord:
    actions, _, resource = text.partition(" on ")
    return records.RuleRecord(actions.split(","), resource)


@contextlib.asynccontextmanager
async def access_world(
    path: Path, rules: Sequence[str], neighbours: Sequence[str] | None = None, **sections: Any
) -> AsyncIterator[AccessWorld]:
    world = AccessWorld(await BrokerNode.start(node_settings(path, "iceberg", **sections)))
    try:
        if "mqtt" in sections:
            await world.retain("orders/1")
        await world.secure(rules, neighbours)
        yield world
    finally:
        await world.close()


def outcome_of(error: errors.IcestreamError | None) -> str:
    """`allowed`, or the code of the error."""
    return ALLOWED if error is None else error.code


UNAUTHENTICATED: Final = errors.Unauthenticated.code
DENIED: Final = errors.PermissionDenied.code
