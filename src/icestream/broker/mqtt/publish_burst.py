"""BurstStore: stores plain messages of many clients at once (BurstPublisher of client_link.py).

A burst is one block for each shard, made by the native wire with the columns of `message_rows.py`. What could make the
broker decide about a single message makes it refuse the burst as a whole, before anything is stored: the front end then
hands its messages over one by one, and the decision is made by the code of ConnectedClient. So a burst has no rule of
its own.

    checked for     that
    each client     it has not ended or been taken over (hazard 59), none of its messages waits for room, and the rights
                    that its routes were resolved with are still those of the policy (hazard 72)
    each shard      no policy of the topic looks at single messages
    the log         it has room, and takes the blocks as one group

The order of a client and shard is that of the calls: a burst is stored, or its messages wait where later ones wait too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from icestream import errors
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.mqtt.client_link import BurstFailure, PublishBurst
from icestream.broker.mqtt.message_routes import RouteTarget
from icestream.error_codes import mqtt_reason
from icestream.model.shard import ShardKey
from icestream.mqtt.reason_codes import PUBACK_CODES, nearest_reason
from icestream.observability import metrics
from icestream.wal.receipt import Receipt

if TYPE_CHECKING:
    from icestream.broker.mqtt.mqtt_service import MqttService


class BurstShard(NamedTuple):
    """A shard of a route, and its topic, whose counters a burst raises."""

    topic: BrokerTopic
    key: ShardKey


class BurstStore:
    """The shards of all routes by number, and the storing of bursts."""

    def __init__(self, service: MqttService) -> None:
        self._service = service
        self._shards: list[BurstShard] = []
        self._numbers: dict[ShardKey, int] = {}

    def queue_of(self, topic: BrokerTopic, key: ShardKey) -> int:
        """The number of a shard; it never stands for another one."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._shards)
            self._shards.append(BurstShard(topic, key))
        return number

    def queues_of(self, target: RouteTarget) -> list[int]:
        """The numbers of all shards of a route, in order."""
        return [self.queue_of(target.topic, key) for key in target.keys]

    def publish_burst(self, burst: PublishBurst, on_done: Callable[[BurstFailure | None], None]) -> bool:
        """Stores a burst as one group. False: nothing was stored, its messages are to be handed over one by one.

        `on_done` is called when the burst is durable (None), was refused, or its outcome is unknown.
        """
        service, blocks = self._service, burst.blocks
        for session in burst.sessions:
            if session is None or not session.takes_bursts:
                return False
        shards = [self._shards[queue] for queue in burst.queues]
        storage = service.storage
        if (
            not storage.has_room(len(blocks))
            or not storage.takes_group(len(blocks), len(shards))
            or service.needs_decisions((shard.topic for shard in shards), burst.largest_message_bytes)
        ):
            return False
        service.log.flush()  # session records that wait for a write share the record of the log with this group
        try:
            keys = [shard.key for shard in shards]
            receipt = storage.store_group(keys, burst.group.bodies_of(blocks), burst.group)
        except errors.IcestreamError:
            return False  # each message is refused by itself, with the same error
        self._count(burst, shards)
        receipt.add_done_callback(partial(self._stored, burst.messages, on_done))
        return True

    @staticmethod
    def _count(burst: PublishBurst, shards: list[BurstShard]) -> None:
        start = 0
        for shard, rows, end in zip(shards, burst.group.rows, burst.group.ends, strict=True):
            shard.topic.published_messages += rows
            shard.topic.published_bytes += end - start
            start = end
        metrics.PUBLISHED_MESSAGES.value += burst.messages
        metrics.PUBLISHED_BYTES.value += len(burst.blocks)

    def _stored(self, messages: int, on_done: Callable[[BurstFailure | None], None], receipt: Receipt) -> None:
        error = receipt.exception()
        if error is None and isinstance(result := receipt.result()[0], errors.IcestreamError):
            error = result
        if error is not None:
            metrics.PUBLISH_OUTCOMES.add(error.code, messages)
            reason_code = mqtt_reason(error)
            if isinstance(error, errors.Refused):
                on_done(BurstFailure(nearest_reason(reason_code, PUBACK_CODES), error.message, is_unknown=False))
            else:
                on_done(BurstFailure(reason_code, error.message, is_unknown=True))
            return
        metrics.PUBLISH_OUTCOMES.add("stored", messages)
        if receipt.pause_ms:  # near a quota: the clients wait for the acks before they send more
            self._service.start_task(self._finish_later(receipt.pause_ms, on_done), "mqtt slowed acks")
        else:
            on_done(None)

    async def _finish_later(self, pause_ms: int, on_done: Callable[[BurstFailure | None], None]) -> None:
        await self._service.sleep(pause_ms / 1000)
        on_done(None)
