"""`icestream bench`: a short load, to see what this machine and this broker do. Not a comparison (docs/benchmarks.md).

    1. publish   all messages, as fast as the broker takes them
    2. consume   all of them, from the earliest on
    3. ack       one message after the other, each waits for its answer: how long that takes

It makes a topic of its own, and deletes it at the end with its table. Client and broker share the machine, and with
--memory the process: the figures are of both together.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from icestream import errors, limits
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import NAME, client_of, message_address
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat
from icestream.client.batch import MessageId
from icestream.client.client import Client, connect
from icestream.client.producer import Producer
from icestream.observability.words import plural, size_text

# Messages that leave together, and that are taken together.
TICK_MESSAGES: Final = 1_000
CONSUME_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    messages: int
    payload_bytes: int
    acks: int


@dataclass(frozen=True, slots=True)
class Measured:
    publish_seconds: float
    ack_seconds: list[float]
    consume_seconds: float


def bench(
    messages: Annotated[
        int, typer.Option("--messages", metavar="NUMBER", min=1, max=1_000_000, help="How many.")
    ] = 100_000,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=0, max=limits.MESSAGE_BYTES_MAX, help="Bytes of each.")
    ] = 100,
    acks: Annotated[
        int, typer.Option("--acks", metavar="NUMBER", min=1, max=100_000, help="Single messages that are timed.")
    ] = 1_000,
    memory: Annotated[bool, typer.Option("--memory", help="Start a broker in this process, in memory.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Publish and consume for some seconds, and say how fast that was.

    Example: icestream bench --memory --messages 200000 --output json
    """
    if memory and broker is not None:
        raise errors.InvalidInput("--memory and --broker", hint="give one of them")
    load = Load(messages, size, acks)
    where = "memory" if memory else asyncio.run(message_address(Target(broker, config, sets).place))
    found = asyncio.run(_run(Target(broker, config, sets), load, memory=memory))
    answer = Output(output)
    answer.record({"broker": where, **(words if answer.for_people else figures)(load, found)})


def figures(load: Load, found: Measured) -> dict[str, object]:
    return {
        "messages": load.messages,
        "payload_bytes": load.payload_bytes,
        "publish_messages_per_second": _rate(load.messages, found.publish_seconds),
        "publish_bytes_per_second": _rate(load.messages * load.payload_bytes, found.publish_seconds),
        "consume_messages_per_second": _rate(load.messages, found.consume_seconds),
        "ack_p50_seconds": round(percentile(found.ack_seconds, 50), 7),
        "ack_p99_seconds": round(percentile(found.ack_seconds, 99), 7),
    }


def words(load: Load, found: Measured) -> dict[str, object]:
    """The same for people."""
    size = _rate(load.messages * load.payload_bytes, found.publish_seconds)
    p50, p99 = (1000 * percentile(found.ack_seconds, share) for share in (50, 99))
    return {
        "load": f"{load.messages:,} {plural(load.messages, 'message')} of {load.payload_bytes:,} bytes",
        "publish": f"{_rate(load.messages, found.publish_seconds):,} messages/s, {size_text(size)}/s",
        "consume": f"{_rate(load.messages, found.consume_seconds):,} messages/s",
        "ack of one message": f"{p50:.3f} ms (p50), {p99:.3f} ms (p99)",
    }


def percentile(values: Sequence[float], share: int) -> float:
    """The nearest rank: the smallest value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * share // 100) - 1, 0)]


def _rate(count: int, seconds: float) -> int:
    return round(count / max(seconds, 1e-9))


async def _run(target: Target, load: Load, *, memory: bool) -> Measured:
    async with _client(target, memory=memory) as client:
        topic = f"/default/bench-{secrets.token_hex(6)}"
        await client.create_topic(topic)
        try:
            return await _measure(client, topic, load)
        finally:
            if client.is_connected:
                await client.delete_topic(topic, table="purge", rest="discard")


@contextlib.asynccontextmanager
async def _client(target: Target, *, memory: bool) -> AsyncIterator[Client]:
    if not memory:
        async with client_of(target) as client:
            yield client
        return
    from icestream.server.broker_node import BrokerNode  # the whole broker: only where one is started
    from icestream.settings import Settings

    tree: dict[str, Any] = {"ports": {"native": 0, "broker_http": 0}, "lake": {"managed": False}}
    others = {"danube": {"enable": False}, "storage": {"type": "memory"}}  # its fixed ports may be another broker's
    node = await BrokerNode.start(Settings.model_validate({**tree, **others}))
    try:
        async with connect(f"127.0.0.1:{node.native.port}", name=NAME) as client:
            yield client
    finally:
        await node.stop()


async def _measure(client: Client, topic: str, load: Load) -> Measured:
    payload = b"x" * load.payload_bytes
    async with client.producer(topic) as producer:
        publish_seconds = await _publish(producer, payload, load.messages)
        consume_seconds = await _consume(client, topic, load.messages)
        ack_seconds = [await _timed(producer.send(payload)) for _ in range(load.acks)]
    return Measured(publish_seconds, ack_seconds, consume_seconds)


async def _publish(producer: Producer, payload: bytes, messages: int) -> float:
    """Until all are stored. Raises what became of one that is not."""
    begun = time.perf_counter()
    answers: list[asyncio.Future[MessageId]] = []
    for number in range(messages):
        await producer.ready()
        answers.append(producer.send(payload))
        if number % TICK_MESSAGES == TICK_MESSAGES - 1:
            await asyncio.sleep(0)
    await producer.flush()
    seconds = time.perf_counter() - begun
    for answer in answers:
        answer.result()
    return seconds


async def _timed(answer: asyncio.Future[MessageId]) -> float:
    begun = time.perf_counter()
    await answer
    return time.perf_counter() - begun


async def _consume(client: Client, topic: str, messages: int) -> float:
    async with client.subscribe(topic, "bench", type="exclusive", start="earliest") as subscription:
        begun, left = time.perf_counter(), messages
        while left:
            try:
                async with asyncio.timeout(CONSUME_SECONDS):
                    found = await subscription.take(min(left, TICK_MESSAGES))
            except TimeoutError:
                raise errors.ConnectionLost(
                    f"no message came in {CONSUME_SECONDS:g} s, {left} were left", hint="is the broker overloaded?"
                ) from None
            subscription.ack_through(found[-1])
            left -= len(found)
        return time.perf_counter() - begun
