"""The clients of a broker that is killed again and again: some live through it all, some are new in each life.

    till, clerk    two producers that stay; the clerk leaves and comes back under its name all the time
    once           an exclusive consumer that stays and deduplicates: the truth about what is stored, and its order
    churner        deletes and makes a topic with a subscription, again and again

New in each life, so that everything that the broker delivers again is seen (one that stays acks it by itself):
    held           exclusive, acks as it likes and never the first message of a shard
    standby        failover with two consumers, the first of which may leave; is sought
    keyed          key-shared with three consumers, one of them with a filter; is sought
    sorted         shared with two consumers; what is poison fails until it is a dead letter
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import icestream
from icestream import errors, limits
from icestream.client.batch import MessageId
from icestream.runtime.clock import SystemClock
from tests.support.fake_clock import FakeClock
from tests.support.history import check
from tests.support.killed_broker import CURSORS, LOST, InternalCalls
from tests.support.subscription_audit import AuditedCursor, ShardAudit
from tests.support.until import until

TOPIC, LETTERS, CHURN = "/default/orders", "/default/letters", "/default/churn"
SHARDS, KEYS = 2, 7
BEHIND_MAX = 150  # messages that the slowest subscription may lag: the whole run waits for it in the end
WAIT_SECONDS = 60.0
FAST = {"base_delay_ms": 1, "max_delay_ms": 5}
BURYING = {**FAST, "max_redelivery_count": 1, "poison": "dead-letter", "dead_letter_topic": LETTERS}


def client_clock() -> FakeClock:
    """Real time in which the client's waits before a retry are short: here the broker comes back at once."""

    def shorten(seconds: float) -> float:
        return min(seconds, 0.01) if seconds <= limits.CLIENT_RETRY_SECONDS_MAX else seconds

    return FakeClock(SystemClock(), shorten=shorten)


class SubscriptionKind(NamedTuple):
    """A subscription whose consumers are new in each life."""

    name: str
    type: icestream.client.subscribe_call.TypeName
    consumers: tuple[str, ...]
    failure: dict[str, Any]
    prefetch: int
    is_sought: bool


KINDS = (
    SubscriptionKind("held", "exclusive", ("h",), FAST, 100, is_sought=False),
    SubscriptionKind("standby", "failover", ("f1", "f2"), FAST, 4, is_sought=True),
    SubscriptionKind("keyed", "key-shared", ("k1", "k2", "k3"), FAST, 100, is_sought=True),
    SubscriptionKind("sorted", "shared", ("s1", "s2"), BURYING, 100, is_sought=False),
)


def number_of(payload: bytes) -> int:
    return int(payload.split(b":")[1])


def is_poison(number: int) -> bool:
    return number % 23 == 5


class PermanentClients:
    """The clients that live through all kills of the broker."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sent: list[asyncio.Future[MessageId]] = []
        self.seen: list[tuple[int, int, bytes]] = []  # shard, offset, payload
        self.newest: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}  # offsets that messages have
        self.incarnations: list[int] = []
        self.behind: InternalCalls | None = None  # of the present life
        self.backlog = 0
        self.is_over = False

    # --- producers ---

    async def sell(self, client: icestream.Client) -> None:
        producer = await client.producer(TOPIC, name="till")
        while not self.is_over:
            await self._send(producer, self.chance.randrange(1, 12))
            await asyncio.sleep(self.chance.choice([0, 0.001, 0.003]))
        await producer.close()

    async def sell_by_fits(self, client: icestream.Client) -> None:
        while not self.is_over:
            producer = await client.producer(TOPIC, name="clerk")
            await self._send(producer, self.chance.randrange(1, 5))
            await producer.close()
            await asyncio.sleep(0.01)

    async def _send(self, producer: icestream.Producer, count: int) -> None:
        await until(lambda: self.is_over or self.backlog + self._unseen < BEHIND_MAX)
        for _ in range(count):
            number = len(self.sent)
            payload = f"{producer.name}:{number}".encode()
            self.sent.append(producer.send(payload, key=b"%d" % (number % KEYS)))

    @property
    def _unseen(self) -> int:
        return len(self.sent) - len(self.seen)

    @property
    def stored(self) -> int:
        return sum(request.done() for request in self.sent)

    # --- consumers ---

    async def read(self, client: icestream.Client) -> None:
        async with client.subscribe(TOPIC, "once", type="exclusive", start="earliest", dedup=True) as messages:
            while True:
                for message in await messages.take(100):
                    self.seen.append((message.shard, message.offset, message.payload))
                    self.newest[message.shard].append(message.offset)
                    if self.chance.random() < 0.9:
                        message.ack()
                    else:
                        asyncio.get_running_loop().call_later(0.02, _ack, messages, message)

    # --- topics that come and go ---

    async def churn(self, client: icestream.Client) -> None:
        while not self.is_over:
            with contextlib.suppress(*LOST):
                await self._churn_once(client)
            await asyncio.sleep(0.03)

    async def _churn_once(self, client: icestream.Client) -> None:
        with contextlib.suppress(errors.UnknownTopic):
            await client.delete_topic(CHURN)
        await client.create_topic(CHURN)
        producer = await client.producer(CHURN, create=False)
        place = await producer.send(b"first")
        await producer.close()
        check(place.offset == 0, "a topic that was made anew goes on with old offsets", place)
        async with client.subscribe(CHURN, "waits", type="exclusive", start="earliest"):
            pass
        description = await client.describe_topic(CHURN)
        check(description.subscriptions == ["waits"], "a subscription that was made is gone", description)
        if self.behind is not None:
            (incarnation,) = [(await self.behind.call("inspect_topic", topic=CHURN))["incarnation"]]
            is_new = not self.incarnations or incarnation > self.incarnations[-1]
            check(is_new, "an incarnation was given out twice", incarnation, self.incarnations)
            self.incarnations.append(incarnation)

    # --- in the end ---

    def check_all(self, message_ids: list[MessageId]) -> None:
        places = {(shard, offset): number_of(payload) for shard, offset, payload in self.seen}
        is_once = len(places) == len(self.seen) == len(message_ids)
        check(is_once, "handed out or stored twice, or not at all", len(places), len(self.seen), len(message_ids))
        for number, message_id in enumerate(message_ids):
            check(
                places.get((message_id.shard, message_id.offset)) == number, "acked, and not there", number, message_id
            )
        for shard in range(SHARDS):
            offsets = [offset for place, offset, _ in self.seen if place == shard]
            check(offsets == sorted(offsets), "out of order for a consumer that stays", shard)
            for producer in (b"till", b"clerk"):
                numbers = [
                    number_of(payload)
                    for place, _, payload in sorted(self.seen)
                    if place == shard and payload.startswith(producer)
                ]
                check(numbers == sorted(numbers), "not in the order of sending", shard, producer)
                check(len(numbers) > 10, "hardly anything was sent", shard, producer)


def _ack(subscription: icestream.Subscription, message: icestream.Message) -> None:
    if subscription.error is None:
        with contextlib.suppress(errors.ClientClosed):
            message.ack()


class Auditors:
    """The audits of all subscriptions, over all lives."""

    def __init__(self) -> None:
        self._audits = {
            (kind.name, shard): ShardAudit(
                f"{kind.name}/{shard}",
                is_ordered=kind.type in ("exclusive", "failover"),
                is_keyed=kind.type == "key-shared",
            )
            for kind in KINDS
            for shard in range(SHARDS)
        }

    def __getitem__(self, key: tuple[str, int]) -> ShardAudit:
        return self._audits[key]

    def __iter__(self) -> Iterator[ShardAudit]:
        return iter(self._audits.values())

    def written(self, key: str, value: bytes, revision: int) -> None:
        audit = self._find(key)
        if audit is not None:
            audit.written(AuditedCursor.parse(value, revision))

    async def life_began(self, behind: InternalCalls, *, was_stopped: bool) -> None:
        revision = await behind.revision()
        cursors = 0
        for key, value, written in await behind.entries(CURSORS):
            audit = self._find(key)
            if audit is not None:
                cursors += 1
                audit.life_began(AuditedCursor.parse(value, written), was_stopped=was_stopped)
        check(cursors == len(self._audits), "cursors are gone", cursors)
        await behind.watch(CURSORS, revision, self.written)

    def _find(self, key: str) -> ShardAudit | None:
        name, _, shard = key.removeprefix(CURSORS).partition(f"{TOPIC}-part-")
        return self._audits.get((name, int(shard))) if shard else None

    def are_done(self, clients: PermanentClients) -> bool:
        """True if every cursor has passed every message."""
        ends = {shard: max(offsets, default=-1) for shard, offsets in clients.newest.items()}
        return all(
            audit.cursor is not None and audit.cursor.offset > ends[shard] for (_, shard), audit in self._audits.items()
        )

    @property
    def repeated(self) -> int:
        return sum(audit.repeated for audit in self)

    def check_all(self, clients: PermanentClients) -> None:
        for (name, shard), audit in self._audits.items():
            numbers = {offset: number_of(payload) for place, offset, payload in clients.seen if place == shard}
            keys = {offset: b"%d" % (number % KEYS) for offset, number in numbers.items()}
            audit.check_all(keys, lambda offset, n=numbers, s=name: s == "sorted" and is_poison(n[offset]))


class TrafficWorker:
    """One consumer of one life."""

    def __init__(
        self, client: icestream.Client, kind: SubscriptionKind, consumer: str, auditors: Auditors, chance: random.Random
    ) -> None:
        self.kind = kind
        self.audits = [auditors[kind.name, shard] for shard in range(SHARDS)]
        self.lets_go = False  # of the message that is held back
        self.has_left = False
        self._chance = chance
        self._hand: list[icestream.Message] = []
        self._acks: list[list[tuple[int, int]]] = [[] for _ in range(SHARDS)]  # not known to be counted
        self.subscription = client.subscribe(
            TOPIC,
            kind.name,
            type=kind.type,
            start="earliest",
            consumer=consumer,
            prefetch=kind.prefetch,
            failure=kind.failure,
            key_patterns=("[0-3]*",) if consumer == "k3" else (),
        )
        self.consumer = consumer

    async def run(self) -> None:
        async for message in self.subscription:
            delivered, offset = message._delivered, message.offset
            audit = self.audits[message.shard]
            audit.handed(self.consumer, delivered.generation, offset, message.key or b"", message.redelivery_count)
            self._hand.append(message)
            if self._chance.random() < 0.3:
                self._settle()

    async def settle(self) -> None:
        """Acks or fails the received messages again and again, so that none stays in flight."""
        while True:
            await asyncio.sleep(0.004)
            self._settle()

    def _settle(self) -> None:
        hand, self._hand = self._hand, []
        if self.kind.type in ("shared", "exclusive"):
            self._chance.shuffle(hand)
        for message in hand:
            if self._chance.random() < 0.2:
                self._hand.append(message)
            elif self.kind.name == "held" and message.offset == 0 and not self.lets_go:
                pass  # for the whole run
            elif self._fails(message):
                self.audits[message.shard].nacked(message._delivered.generation, message.offset, message.key or b"")
                message.nack(self._chance.choice([0, 0.002]))
            else:
                self._ack(message)

    def _fails(self, message: icestream.Message) -> bool:
        if self.kind.name == "sorted":
            return is_poison(number_of(message.payload)) or (
                not message.redelivery_count and self._chance.random() < 0.05
            )
        return not message.redelivery_count and self._chance.random() < 0.02

    def _ack(self, message: icestream.Message) -> None:
        delivered, offset = message._delivered, message.offset
        self.audits[message.shard].acked(delivered.generation, offset, message.key or b"")
        self._acks[message.shard].append((delivered.generation, offset))
        message.ack()

    async def count(self, behind: InternalCalls) -> None:
        """Which acks the broker has counted by now, and where its store stood then."""
        acks, self._acks = self._acks, [[] for _ in range(SHARDS)]
        await self.subscription.flush()
        revision = await behind.revision()
        for audit, counted in zip(self.audits, acks, strict=True):
            audit.counted(counted, revision)

    async def leave(self) -> None:
        self.has_left = True
        for message in self._hand:
            self.audits[message.shard].given_up(message._delivered.generation, message.key or b"")
        self._hand.clear()
        await self.subscription.close()
