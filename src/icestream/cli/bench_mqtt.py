"""`icestream bench mqtt`: load on an MQTT broker, ours or another one, that also checks what it delivers.

    persistent-session   cycles of two stages: subscribers with durable sessions return, take what was published while
                         they were away, and leave; publishers send for some seconds. As emqttb's of that name
    connect              clients that connect, as fast as the broker lets them in, and stay until all are there
    fan-in               many publishers, one subscriber
    fan-out              one publisher, many subscribers
    shared               many publishers, one shared subscription with many members

Each message has a number: what is lost, doubled or out of order is counted, and makes the exit code 1. With QoS 1 a
repeat is allowed, and only counted. The client is written in Python and shares the machine with the broker: rates are
those of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from icestream import errors
from icestream.cli.mqtt_load_client import LoadClient, MqttAccount, SequenceCheck, encode_payload

EXPIRY_NEVER: Final = 0xFFFFFFFF
# Connections that are opened at the same time.
CONNECTING: Final = 100
# No message within this time, and some outstanding: the subscriber is stuck.
STUCK_SECONDS: Final = 10.0


class MqttScenario(StrEnum):
    PERSISTENT_SESSION = "persistent-session"
    CONNECT = "connect"
    FAN_IN = "fan-in"
    FAN_OUT = "fan-out"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class MqttLoad:
    """What to do. `seconds`: of a publish stage; `messages`: of each publisher, where there are no stages."""

    host: str
    port: int
    account: MqttAccount
    publishers: int
    subscribers: int
    qos: int
    size: int
    window: int
    messages: int
    cycles: int
    seconds: float
    clients: int


@dataclass(slots=True)
class MqttResult:
    """What was seen. `stuck`: how often subscribers got nothing for STUCK_SECONDS, with messages outstanding."""

    connects: list[float] = field(default_factory=list)
    published: int = 0
    publish_seconds: float = 0.0
    consumed: int = 0
    consume_seconds: float = 0.0
    gaps: int = 0
    repeats: int = 0
    stuck: int = 0
    missing: int = 0
    first_seconds: list[float] = field(default_factory=list)
    latency_seconds: list[float] = field(default_factory=list)
    per_member: list[int] = field(default_factory=list)

    def is_good(self, qos: int) -> bool:
        """True if nothing was lost, and with QoS 2 (and 0) nothing doubled."""
        return not (self.gaps or self.missing or self.stuck or (self.repeats and qos != 1))

    def add(self, checks: Sequence[SequenceCheck]) -> None:
        self.consumed += sum(check.received for check in checks)
        self.gaps += sum(check.gaps for check in checks)
        self.repeats += sum(check.repeats for check in checks)
        self.latency_seconds += [nanoseconds / 1e9 for check in checks for nanoseconds in check.latency_ns]


async def run(scenario: MqttScenario, load: MqttLoad) -> MqttResult:
    bench = _MqttBench(load)
    match scenario:
        case MqttScenario.PERSISTENT_SESSION:
            await bench.persistent_session()
        case MqttScenario.CONNECT:
            await bench.connect_storm()
        case MqttScenario.FAN_IN:
            await bench.flow(load.publishers, 1)
        case MqttScenario.FAN_OUT:
            await bench.flow(1, load.subscribers)
        case MqttScenario.SHARED:
            await bench.flow(load.publishers, load.subscribers, group="bench")
    return bench.result


class _MqttBench:
    """One run, with a topic prefix and client ids of its own."""

    def __init__(self, load: MqttLoad) -> None:
        self._load = load
        self._prefix = f"bench-{secrets.token_hex(4)}"
        self._connecting = asyncio.Semaphore(CONNECTING)
        self.result = MqttResult()

    # --- scenarios ---

    async def persistent_session(self) -> None:
        load = self._load
        checks = [SequenceCheck() for _ in range(load.subscribers)]
        received_ids: list[set[int]] = [set() for _ in checks]
        numbers = [0] * load.publishers
        try:
            for cycle in range(load.cycles + 1):
                await self._consume_stage(checks, received_ids, sum(numbers), is_first=cycle == 0)
                if cycle < load.cycles:
                    await self._publish_stage(numbers)
            self.result.add(checks)
            self.result.missing = sum(numbers) * load.subscribers - self.result.consumed + self.result.repeats
        finally:
            await self._end_sessions()

    async def _consume_stage(
        self, checks: Sequence[SequenceCheck], received_ids: Sequence[set[int]], total: int, *, is_first: bool
    ) -> None:
        """Until each subscriber has everything that was published, or nothing comes any more."""
        start = time.perf_counter()
        before = sum(check.received for check in checks)
        arrived = asyncio.Event()

        waiting = set(map(id, checks))  # for their first message of this stage

        def take(check: SequenceCheck, payload: bytes) -> None:
            if id(check) in waiting:
                waiting.discard(id(check))
                self.result.first_seconds.append(time.perf_counter() - start)
            check.add(payload)
            arrived.set()

        takers = [LoadClient(partial(take, check), ids) for check, ids in zip(checks, received_ids, strict=True)]
        async with self._connected(takers, "subscriber", is_clean_start=is_first, expiry=EXPIRY_NEVER) as clients:
            if is_first:
                await asyncio.gather(*(client.subscribe(f"{self._prefix}/#", self._load.qos) for client in clients))
            await self._until_received(clients, checks, total, arrived)
        if sum(check.received for check in checks) > before:
            self.result.consume_seconds += time.perf_counter() - start

    async def _until_received(
        self, clients: Sequence[LoadClient], checks: Sequence[SequenceCheck], total: int, arrived: asyncio.Event
    ) -> None:
        while any(check.received - check.repeats < total for check in checks):
            arrived.clear()
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    await arrived.wait()
            except TimeoutError:
                self.result.stuck += sum(check.received - check.repeats < total for check in checks)
                return
            for client in clients:
                client.check()

    async def _publish_stage(self, numbers: list[int]) -> None:
        start = time.perf_counter()
        before = sum(numbers)
        async with self._connected(_senders(len(numbers)), "publisher") as clients:
            began = time.perf_counter()
            await asyncio.gather(
                *(
                    self._publish_for(client, publisher, numbers, began + self._load.seconds)
                    for publisher, client in enumerate(clients)
                )
            )
        self.result.publish_seconds += time.perf_counter() - start
        self.result.published += sum(numbers) - before

    async def _publish_for(self, client: LoadClient, publisher: int, numbers: list[int], until: float) -> None:
        while time.perf_counter() < until:
            await self._publish_one(client, publisher, numbers)
        await client.settled()

    async def _publish_one(self, client: LoadClient, publisher: int, numbers: list[int]) -> None:
        load = self._load
        payload = encode_payload(publisher, numbers[publisher], load.size)
        await client.publish(f"{self._prefix}/{publisher}", payload, load.qos, load.window)
        numbers[publisher] += 1
        if numbers[publisher] % load.window == 0:
            await asyncio.sleep(0)  # QoS 0 has no window that would let others run

    async def connect_storm(self) -> None:
        start = time.perf_counter()
        async with self._connected(_senders(self._load.clients), "client"):
            self.result.publish_seconds = time.perf_counter() - start

    async def flow(self, publishers: int, subscribers: int, group: str = "") -> None:
        """`group`: the subscribers share a subscription, and each message goes to one of them."""
        load = self._load
        total = publishers * load.messages
        checks = [SequenceCheck() for _ in range(subscribers)]
        received: set[bytes] = set()
        arrived = asyncio.Event()
        doubled = 0

        def take(check: SequenceCheck, payload: bytes) -> None:
            nonlocal doubled
            if group:  # a member gets a part of each publisher's messages: only the whole has no holes
                key = payload[:12]
                doubled += key in received
                received.add(key)
                check.received += 1
            else:
                check.add(payload)
            arrived.set()

        async with (
            self._connected([LoadClient(partial(take, check)) for check in checks], "subscriber") as takers,
            self._connected(_senders(publishers), "publisher") as senders,
        ):
            topic_filter = f"{self._prefix}/#"
            share = f"$share/{group}/{topic_filter}" if group else topic_filter
            await asyncio.gather(*(client.subscribe(share, load.qos) for client in takers))
            numbers = [0] * publishers
            start = time.perf_counter()

            async def send(client: LoadClient, publisher: int) -> None:
                for _ in range(load.messages):
                    await self._publish_one(client, publisher, numbers)
                await client.settled()

            sending = asyncio.gather(*(send(client, number) for number, client in enumerate(senders)))
            sending.add_done_callback(lambda _: arrived.set())
            try:
                await self._until_flow(takers, checks, total, arrived, sending, is_shared=bool(group))
                self.result.consume_seconds = time.perf_counter() - start
                await sending
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            self.result.published = total
            self.result.publish_seconds = time.perf_counter() - start
        self.result.add(checks)
        self.result.repeats += doubled
        expected = total if group else total * subscribers
        self.result.missing = expected - (self.result.consumed - self.result.repeats)
        self.result.per_member = [check.received for check in checks] if group else []

    async def _until_flow(
        self,
        clients: Sequence[LoadClient],
        checks: Sequence[SequenceCheck],
        total: int,
        arrived: asyncio.Event,
        sending: asyncio.Future[Any],
        *,
        is_shared: bool,
    ) -> None:
        def outstanding() -> int:
            counts = [check.received - check.repeats for check in checks]
            return total - sum(counts) if is_shared else sum(total - count for count in counts)

        while outstanding() > 0:
            arrived.clear()
            try:
                async with asyncio.timeout(STUCK_SECONDS):
                    await arrived.wait()
            except TimeoutError:
                self.result.stuck += 1
                return
            if sending.done():
                sending.result()
            for client in clients:
                client.check()

    # --- clients ---

    @contextlib.asynccontextmanager
    async def _connected(
        self, clients: Sequence[LoadClient], name: str, *, is_clean_start: bool = True, expiry: int = 0
    ) -> AsyncIterator[Sequence[LoadClient]]:
        """Connects these clients, all of them; disconnects them in order at the end."""

        async def connect(number: int, client: LoadClient) -> None:
            async with self._connecting:
                start = time.perf_counter()
                await client.connect(
                    self._load.host, self._load.port, f"{self._prefix}-{name}-{number}", self._load.account,
                    is_clean_start=is_clean_start, expiry_seconds=expiry,
                )  # fmt: skip
                self.result.connects.append(time.perf_counter() - start)

        try:
            await asyncio.gather(*(connect(number, client) for number, client in enumerate(clients)))
            yield clients
            await asyncio.gather(*(client.disconnect() for client in clients))
        finally:
            for client in clients:
                client.abort()

    async def _end_sessions(self) -> None:
        """Nothing stays at the broker: a clean start without expiry ends a session."""
        with contextlib.suppress(errors.IcestreamError):
            async with self._connected(_senders(self._load.subscribers), "subscriber"):
                pass


def _senders(count: int) -> list[LoadClient]:
    """Clients that expect no messages."""
    return [LoadClient() for _ in range(count)]
