"""A producer keeps its send order in every shard: whatever messages carry, however large they are, whatever is refused,
and however often the connection breaks.

Each example sends a plan of messages to a real broker through a proxy, then reads the topic back as messages or as
Arrow batches. In each shard the stored messages must be in send order, each once, at the offset that its future names.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import icestream
from icestream import errors, limits
from icestream.broker.memory_storage import MemoryStorage
from icestream.client.batch import MessageId
from icestream.runtime.randomness import SeededRandomness
from icestream.testing import TestBroker
from icestream.wal.admission import Quota
from tests.support.cutting_proxy import CuttingProxy, cutting_proxy
from tests.support.fake_clock import clock_with_short_sleeps
from tests.support.until import until

WAIT_SECONDS = 60.0
# Small bounds: the sizes of a plan reach every one of them with little memory.
BATCH_BYTES = 16 * 1024
MESSAGE_BYTES = 40_000
NUMBERS = itertools.count()


@dataclass(frozen=True)
class PlannedSend:
    """One message. `share` of a batch's room, and so many bytes more."""

    kind: str  # plain, keyed, headers, time, all
    key: int
    share: float
    more: int


@dataclass(frozen=True)
class OrderStep:
    """`tick`: the loop runs. `burst`, `window`: small messages, in one tick or each in its own. The others disturb."""

    kind: str
    count: int = 0


@dataclass(frozen=True)
class OrderSetup:
    """The settings of a producer and its client."""

    shards: int
    pending_bytes: int
    compression: bool
    name: str | None


SENDS = st.builds(
    PlannedSend,
    st.sampled_from(["plain", "plain", "keyed", "headers", "time", "all"]),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.0, 1 / 3, 0.5, 1.0, 1.5, MESSAGE_BYTES / BATCH_BYTES]),
    st.sampled_from([-1, 0, 1, 40]),
)
STEPS = st.one_of(
    st.just(OrderStep("tick")),
    st.builds(OrderStep, st.just("burst"), st.sampled_from([2, 62, 130])),
    st.builds(OrderStep, st.just("window"), st.sampled_from([2, limits.PRODUCER_WINDOW_BATCHES + 1])),
    st.builds(OrderStep, st.sampled_from(["cut", "cut-requests", "cut-answers", "hold", "refuse", "allow", "forget"])),
)
PLANS = st.lists(st.one_of(SENDS, SENDS, SENDS, STEPS), max_size=40)
SETUPS = st.builds(
    OrderSetup,
    st.integers(1, 3),
    st.sampled_from([3_000, BATCH_BYTES, 10 * BATCH_BYTES, limits.CLIENT_PENDING_BYTES_DEFAULT]),
    st.booleans(),
    st.sampled_from([None, "till", "a name that takes room in every block" * 3]),
)
DEFAULTS = OrderSetup(1, limits.CLIENT_PENDING_BYTES_DEFAULT, False, None)


class OrderEnvironment:
    """A broker and a proxy in front of it, for many examples."""

    def __init__(self, storage: Any) -> None:
        self.runner = asyncio.Runner()
        self._storage = storage

    def __enter__(self) -> OrderEnvironment:
        self.runner.__enter__()
        self.runner.run(self._open())
        return self

    def __exit__(self, *error: object) -> None:
        self.runner.run(self._close())
        self.runner.__exit__(None, None, None)

    async def _open(self) -> None:
        self.broker: TestBroker = icestream.testing.broker(self._storage)
        await self.broker.start()
        self._proxying = cutting_proxy(self.broker.address)
        self.proxy: CuttingProxy = await self._proxying.__aenter__()

    async def _close(self) -> None:
        await self._proxying.__aexit__(None, None, None)
        await self.broker.__aexit__(None, None, None)


@pytest.fixture(scope="module", params=["memory", "disk"])
def place(request: pytest.FixtureRequest) -> Iterator[OrderEnvironment]:
    with pytest.MonkeyPatch.context() as patch, OrderEnvironment(request.param) as opened:
        patch.setattr(limits, "CLIENT_BATCH_BYTES_MAX", BATCH_BYTES)
        yield opened


class OrderOutcome(NamedTuple):
    """Numbers of messages, by shard: those whose future says that they are stored, as they were sent, and the topic."""

    sent: list[list[int]]
    stored: list[list[int]]


class OrderRun:
    """One plan against one topic of its own."""

    def __init__(self, place: OrderEnvironment, client: icestream.Client, producer: icestream.Producer) -> None:
        self._broker = place.broker
        self._proxy = place.proxy
        self._client = client
        self._producer = producer
        self._roomy: Quota | None = None
        self._answer_hold: asyncio.Event | None = None
        self._chance = SeededRandomness(7)
        self.sent: list[tuple[bytes | None, int, asyncio.Future[MessageId]]] = []

    async def carry_out(self, plan: list[PlannedSend | OrderStep]) -> None:
        for step in plan:
            if isinstance(step, PlannedSend):
                await self._send(step)
            else:
                await self._disturb(step)
        self._allow()

    async def _send(self, send: PlannedSend) -> None:
        key = b"key-%d" % send.key if send.kind in ("keyed", "all") else None
        headers = {"a": "x" * send.key} if send.kind in ("headers", "all") else None
        time = 1_700_000_000_000_000 + send.key if send.kind in ("time", "all") else None
        head = b"%d|" % len(self.sent)
        room = int(self._producer._batch_bytes * send.share) - limits.CLIENT_MESSAGE_BYTES
        body = max(room + send.more - len(head), 0)
        await self._ready()
        # bytes that do not compress: a compressed frame keeps its size
        payload = head + self._chance.token(body)
        future = self._producer.send(payload, key=key, headers=headers, publish_time=time)
        self.sent.append((key, len(payload), future))

    async def _ready(self) -> None:
        if self._producer.pending_bytes >= self._limit:
            self._allow()  # nothing would ever make room otherwise
            await asyncio.wait_for(self._producer.ready(), WAIT_SECONDS)

    @property
    def _limit(self) -> int:
        return self._producer._pending_bytes_max

    async def _disturb(self, step: OrderStep) -> None:
        match step.kind:
            case "tick":
                await asyncio.sleep(0)
            case "burst":
                for _ in range(step.count):
                    await self._send(PlannedSend("plain", 0, 0.0, 0))
            case "window":
                for _ in range(step.count):
                    await self._send(PlannedSend("plain", 0, 0.0, 0))
                    await asyncio.sleep(0)
            case "hold":
                if self._answer_hold is None:
                    self._answer_hold = self._proxy.hold_answers()
            case "refuse":
                self._refuse()
            case "allow":
                self._allow()
            case "forget":  # of messages under way it would be known no more which are stored
                self._allow()
                await asyncio.wait_for(self._producer.flush(), WAIT_SECONDS)
                storage = self._broker.node.broker.storage
                if isinstance(storage, MemoryStorage):
                    storage._producers.expire(2**62)
            case _:
                await self._cut(step.kind)

    async def _cut(self, kind: str) -> None:
        """Breaks the connection; with "requests" or "answers" the bytes in flight in that direction are lost first."""
        self._allow()
        self._proxy.swallows_requests = kind == "cut-requests"
        self._proxy.swallows_answers = kind == "cut-answers"
        for _ in range(5):
            await asyncio.sleep(0)
        before = self._client.connections
        self._proxy.cut()
        await until(lambda: self._client.connections > before)

    def _refuse(self) -> None:
        """The log is full: every batch is refused."""
        log = self._broker.node.log
        if log is not None and self._roomy is None:
            self._roomy, log.quota = log.quota, Quota(1, 1)

    def _allow(self) -> None:
        if self._answer_hold is not None:
            self._answer_hold.set()
            self._answer_hold = None
        log = self._broker.node.log
        if log is not None and self._roomy is not None:
            log.quota, self._roomy = self._roomy, None

    async def outcome(self, topic: str, shards: int, as_arrow: bool) -> OrderOutcome:
        futures = [future for _, _, future in self.sent]
        outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), WAIT_SECONDS)
        numbers: list[list[int]] = [[] for _ in range(shards)]
        for number, ((key, size, _), outcome) in enumerate(zip(self.sent, outcomes, strict=True)):
            if not isinstance(outcome, MessageId):
                assert isinstance(outcome, errors.MessageTooLarge), outcome
                assert size > MESSAGE_BYTES - 100  # its key and its headers count
                continue
            assert key is None or outcome.shard == zlib.crc32(key) % shards
            numbers[outcome.shard].append(number)
        read = await self._stored(topic, shards, sum(map(len, numbers)), as_arrow)
        for shard, messages in enumerate(read):
            for offset, number in messages:
                assert outcomes[number] in (MessageId(topic, shard, offset), MessageId(topic, shard, -1))
        return OrderOutcome(numbers, [[number for _, number in messages] for messages in read])

    async def _stored(self, topic: str, shards: int, count: int, as_arrow: bool) -> list[list[tuple[int, int]]]:
        """Offset and number of each message, by shard, in the order in which they are delivered."""
        read: list[list[tuple[int, int]]] = [[] for _ in range(shards)]
        read_rows = 0
        async with (
            icestream.connect(self._broker.address) as client,
            client.subscribe(topic, "check", type="exclusive", start="earliest") as messages,
            asyncio.timeout(WAIT_SECONDS),
        ):
            batches = messages.batches(100) if as_arrow else None
            while read_rows < count:
                if batches is not None:
                    batch = await anext(batches)
                    rows = batch.data.select(["shard", "offset", "payload"]).to_pylist()
                    batch.ack()
                else:
                    some = await messages.take(100)
                    rows = [
                        {"shard": message.shard, "offset": message.offset, "payload": message.payload}
                        for message in some
                    ]
                    for message in some:
                        message.ack()
                for row in rows:
                    read[row["shard"]].append((row["offset"], int(row["payload"].partition(b"|")[0])))
                read_rows += len(rows)
            assert not messages.waiting_messages
        return read


async def run_plan(
    place: OrderEnvironment, setup: OrderSetup, plan: list[PlannedSend | OrderStep], as_arrow: bool
) -> OrderOutcome:
    topic = f"/default/order-{next(NUMBERS)}"
    options: dict[str, Any] = {"compression": setup.compression, "send_timeout": 10 * WAIT_SECONDS}
    async with icestream.connect(
        place.proxy.address, clock=clock_with_short_sleeps(), randomness=SeededRandomness(1), **options
    ) as client:
        await client.create_topic(topic, shards=setup.shards, max_message_bytes=MESSAGE_BYTES)
        name, pending_bytes = setup.name, setup.pending_bytes
        async with client.producer(topic, name=name, pending_bytes=pending_bytes) as producer:
            run = OrderRun(place, client, producer)
            try:
                await run.carry_out(plan)
                outcome = await run.outcome(topic, setup.shards, as_arrow)
            finally:
                run._allow()
                place.proxy.swallows_answers = place.proxy.swallows_requests = False
        await client.delete_topic(topic)
        return outcome


LARGE = PlannedSend("headers", 0, 0.9, 0)
SMALL = PlannedSend("plain", 0, 0.0, 0)


@given(SETUPS, PLANS, st.booleans())
@example(DEFAULTS, [SMALL, LARGE, LARGE, SMALL], False)
@example(DEFAULTS, [SMALL, OrderStep("refuse"), LARGE, LARGE, SMALL, OrderStep("tick"), SMALL], True)
@settings(max_examples=min(settings.default.max_examples // 3, 300))
def test_offsets_are_in_send_order_in_every_shard(
    place: OrderEnvironment, setup: OrderSetup, plan: list[PlannedSend | OrderStep], as_arrow: bool
) -> None:
    outcome = place.runner.run(run_plan(place, setup, plan, as_arrow))
    assert outcome.stored == outcome.sent


def test_the_window_of_batches_in_flight_keeps_the_order_without_replies(place: OrderEnvironment) -> None:
    window = OrderStep("window", 2 * limits.PRODUCER_WINDOW_BATCHES)
    plan: list[PlannedSend | OrderStep] = [
        OrderStep("hold"),
        window,
        LARGE,
        SMALL,
        OrderStep("cut-answers"),
        SMALL,
        LARGE,
        LARGE,
        SMALL,
    ]
    outcome = place.runner.run(run_plan(place, DEFAULTS, plan, as_arrow=False))
    assert outcome.stored == outcome.sent == [list(range(window.count + 6))]


@pytest.mark.asyncio
async def test_messages_beyond_a_mebibyte_in_one_tick_keep_their_order() -> None:
    """With the bounds as they are."""
    large = bytes(900_000)
    async with (
        icestream.testing.broker() as broker,
        icestream.connect(broker.address) as client,
        client.producer("/default/orders") as producer,
    ):
        sent = [
            producer.send(b"1"),
            producer.send(large, headers={"a": "b"}),
            producer.send(large, headers={"a": "b"}),
            producer.send(b"4"),
            producer.send(large, key=b"k"),
            producer.send(b"6"),
            producer.send(large, publish_time=1),
            producer.send(b"8"),
        ]
        assert [message_id.offset for message_id in await asyncio.gather(*sent)] == list(range(8))


@given(st.lists(st.lists(st.sampled_from([0, 1_000, BATCH_BYTES // 2, BATCH_BYTES]), max_size=12), max_size=6))
@settings(max_examples=min(settings.default.max_examples // 5, 300))
def test_the_blocking_producer_keeps_the_order_of_its_calls(calls: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CLIENT_BATCH_BYTES_MAX", BATCH_BYTES)
        with (
            icestream.testing.broker() as broker,
            icestream.connect_sync(broker.address) as client,
            client.producer("/default/orders", pending_bytes=2 * BATCH_BYTES) as producer,
        ):
            offsets: list[int] = []
            for sizes in calls:
                offsets.append(producer.send(b"x", headers={"a": "b"}).offset)
                offsets += [message_id.offset for message_id in producer.send_all([bytes(size) for size in sizes])]
    assert offsets == list(range(len(offsets)))
