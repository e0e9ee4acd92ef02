"""`icestream bench`: short load tests of this machine and this broker. Not comparisons (docs/benchmarks.md).

    native   by the native protocol; what `icestream bench` runs without a name
    mqtt     by MQTT (bench_mqtt.py)

The native one:

    1. publish   all messages, as fast as the broker accepts them
    2. consume   all of them, from the earliest
    3. ack       single messages, each after the acknowledgement of the one before: the latency

It creates a topic, and deletes it at the end with its table. Client and broker share the machine, and with --memory the
process: the figures include both.
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
from icestream.cli.bench_mqtt import MqttLoad, MqttResult, MqttScenario
from icestream.cli.bench_mqtt import run as run_mqtt
from icestream.cli.broker_connection import CLIENT_NAME, BrokerCalls, call_broker, find_message_address, open_client
from icestream.cli.broker_location import BrokerOption, Target, host_and_port
from icestream.cli.commands import Commands, Group
from icestream.cli.mqtt_load_client import PAYLOAD_BYTES_MIN, MqttAccount
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat
from icestream.cli.password_input import PasswordFile, read_password
from icestream.client.batch import MessageId
from icestream.client.client import Client, connect
from icestream.client.producer import Producer
from icestream.observability.words import plural, size_text

# Messages sent in one turn of the event loop, and received at once.
TICK_MESSAGES: Final = 1_000
CONSUME_SECONDS: Final = 30.0
_DEFAULT: Final = "native"


class _NativeByDefault(Group):
    """`icestream bench --memory` is `icestream bench native --memory`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [_DEFAULT, *args])


app = Commands("Publish and consume for some seconds and report the throughput.", cls=_NativeByDefault)


@dataclass(frozen=True, slots=True)
class Load:
    messages: int
    payload_bytes: int
    acks: int


@dataclass(frozen=True, slots=True)
class BenchResult:
    publish_seconds: float
    ack_seconds: list[float]
    consume_seconds: float


@app.command(_DEFAULT)
def bench_native(
    messages: Annotated[
        int, typer.Option("--messages", metavar="NUMBER", min=1, max=1_000_000, help="Number of messages.")
    ] = 100_000,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=0, max=limits.MESSAGE_BYTES_MAX, help="Payload size of each.")
    ] = 100,
    acks: Annotated[
        int, typer.Option("--acks", metavar="NUMBER", min=1, max=100_000, help="Single messages to measure latency.")
    ] = 1_000,
    memory: Annotated[bool, typer.Option("--memory", help="Start a broker in this process, in memory.")] = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Publish and consume for some seconds and report throughput and latency.

    Example: icestream bench native --memory --messages 200000 --output json
    """
    if memory and broker is not None:
        raise errors.InvalidInput("--memory and --broker exclude each other", hint="pass one of them")
    load = Load(messages, size, acks)
    location = "memory" if memory else asyncio.run(find_message_address(Target(broker, config, sets).location))
    result = asyncio.run(_run(Target(broker, config, sets), load, memory=memory))
    answer = Output(output)
    answer.record({"broker": location, **(figures_text if answer.is_text else figures)(load, result)})


@app.command("mqtt")
def bench_mqtt(
    scenario: Annotated[
        MqttScenario, typer.Argument(metavar="SCENARIO", help="persistent-session, connect, fan-in, fan-out or shared.")
    ] = MqttScenario.PERSISTENT_SESSION,
    mqtt: Annotated[
        str | None,
        typer.Option("--mqtt", metavar="HOST:PORT", help="An MQTT broker of any kind; default: that of the broker."),
    ] = None,
    publishers: Annotated[int, typer.Option("--publishers", metavar="NUMBER", min=1, max=10_000)] = 10,
    subscribers: Annotated[int, typer.Option("--subscribers", metavar="NUMBER", min=1, max=10_000)] = 10,
    clients: Annotated[
        int, typer.Option("--clients", metavar="NUMBER", min=1, max=100_000, help="Of the scenario connect.")
    ] = 1_000,
    messages: Annotated[
        int,
        typer.Option("--messages", metavar="NUMBER", min=1, help="Of each publisher: fan-in, fan-out, shared."),
    ] = 1_000,
    cycles: Annotated[
        int, typer.Option("--cycles", metavar="NUMBER", min=1, help="Of the scenario persistent-session.")
    ] = 10,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="NUMBER", min=0.01, help="How long publishers send in each cycle.")
    ] = 1.0,
    qos: Annotated[int, typer.Option("--qos", metavar="QOS", min=0, max=2, help="Of both sides.")] = 2,
    size: Annotated[
        int, typer.Option("--size", metavar="BYTES", min=PAYLOAD_BYTES_MIN, max=1_000_000, help="Payload size of each.")
    ] = 256,
    window: Annotated[
        int, typer.Option("--window", metavar="NUMBER", min=1, max=65_535, help="Messages of a publisher in flight.")
    ] = 100,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="User name of the clients; the password is asked for.")
    ] = None,
    password_file: PasswordFile = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Load an MQTT broker and check that every message arrives once and in order; exit code 1 if not.

    Example: icestream bench mqtt
    Example: icestream bench mqtt fan-out --subscribers 100 --qos 1 --mqtt 127.0.0.1:1883 --output json
    """
    address = mqtt or call_broker(Target(broker, config, sets), _mqtt_address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise errors.InvalidInput(f"{address!r} is not HOST:PORT", hint="for example --mqtt 127.0.0.1:1883")
    account = MqttAccount(user, read_password(password_file, is_new=False) if user is not None else None)
    where = host.strip("[]"), int(port)
    load = MqttLoad(*where, account, publishers, subscribers, qos, size, window, messages, cycles, seconds, clients)
    result = asyncio.run(run_mqtt(scenario, load))
    answer = Output(output)
    answer.record({"mqtt": address, "scenario": scenario.value, **mqtt_figures(scenario, load, result)})
    if not result.is_good(qos):
        raise typer.Exit(1)


async def _mqtt_address(broker: BrokerCalls) -> str:
    """The address of MQTT of a broker. Raises InvalidInput if it serves none."""
    endpoints = await broker.endpoints()
    port = endpoints.ports.get("mqtt_port")
    if not port:
        raise errors.InvalidInput("the broker serves no MQTT", hint="set mqtt.enable, or name a broker with --mqtt")
    return host_and_port(endpoints.ports["host"], port)


def mqtt_figures(scenario: MqttScenario, load: MqttLoad, result: MqttResult) -> dict[str, object]:
    """The figures of a run; those of parts that it does not have are left out."""
    document: dict[str, object] = {
        "connections": len(result.connects),
        "connect_p50_seconds": round(percentile(result.connects, 50), 6),
        "connect_p99_seconds": round(percentile(result.connects, 99), 6),
    }
    if scenario is MqttScenario.CONNECT:
        return {**document, "connects_per_second": _rate(len(result.connects), result.publish_seconds)}
    document |= {
        "qos": load.qos,
        "payload_bytes": load.size,
        "published": result.published,
        "publish_messages_per_second": _rate(result.published, result.publish_seconds),
        "delivered": result.consumed,
        "deliver_messages_per_second": _rate(result.consumed, result.consume_seconds),
        "missing": result.missing,
        "gaps": result.gaps,
        "repeats": result.repeats,
        "stuck": result.stuck,
    }
    if scenario is MqttScenario.PERSISTENT_SESSION:
        document["cycles"] = load.cycles
        if result.first_seconds:
            document["first_message_p50_seconds"] = round(percentile(result.first_seconds, 50), 6)
            document["first_message_p99_seconds"] = round(percentile(result.first_seconds, 99), 6)
    elif result.latency_seconds:
        document["latency_p50_seconds"] = round(percentile(result.latency_seconds, 50), 6)
        document["latency_p99_seconds"] = round(percentile(result.latency_seconds, 99), 6)
    if result.per_member:
        document |= {"member_least": min(result.per_member), "member_most": max(result.per_member)}
    return document


def figures(load: Load, result: BenchResult) -> dict[str, object]:
    return {
        "messages": load.messages,
        "payload_bytes": load.payload_bytes,
        "publish_messages_per_second": _rate(load.messages, result.publish_seconds),
        "publish_bytes_per_second": _rate(load.messages * load.payload_bytes, result.publish_seconds),
        "consume_messages_per_second": _rate(load.messages, result.consume_seconds),
        "ack_p50_seconds": round(percentile(result.ack_seconds, 50), 7),
        "ack_p99_seconds": round(percentile(result.ack_seconds, 99), 7),
    }


def figures_text(load: Load, result: BenchResult) -> dict[str, object]:
    """The figures with units, for text output."""
    size = _rate(load.messages * load.payload_bytes, result.publish_seconds)
    p50, p99 = (1000 * percentile(result.ack_seconds, share) for share in (50, 99))
    return {
        "load": f"{load.messages:,} {plural(load.messages, 'message')} of {load.payload_bytes:,} bytes",
        "publish": f"{_rate(load.messages, result.publish_seconds):,} messages/s, {size_text(size)}/s",
        "consume": f"{_rate(load.messages, result.consume_seconds):,} messages/s",
        "ack of one message": f"{p50:.3f} ms (p50), {p99:.3f} ms (p99)",
    }


def percentile(values: Sequence[float], share: int) -> float:
    """The percentile by nearest rank: the smallest value that `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(-(-len(ordered) * share // 100) - 1, 0)]


def _rate(count: int, seconds: float) -> int:
    return round(count / max(seconds, 1e-9))


async def _run(target: Target, load: Load, *, memory: bool) -> BenchResult:
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
        async with open_client(target) as client:
            yield client
        return
    from icestream.processes.broker_process import BrokerNode  # imports the whole broker: only with --memory
    from icestream.settings import Settings

    tree: dict[str, Any] = {"ports": {"native": 0, "broker_http": 0}, "lake": {"managed": False}}
    # The fixed ports of Danube and MQTT may be in use.
    others = {"danube": {"enable": False}, "mqtt": {"enable": False}, "storage": {"type": "memory"}}
    node = await BrokerNode.start(Settings.model_validate({**tree, **others}))
    try:
        async with connect(f"127.0.0.1:{node.native.port}", name=CLIENT_NAME) as client:
            yield client
    finally:
        await node.stop()


async def _measure(client: Client, topic: str, load: Load) -> BenchResult:
    payload = b"x" * load.payload_bytes
    async with client.producer(topic) as producer:
        publish_seconds = await _publish(producer, payload, load.messages)
        consume_seconds = await _consume(client, topic, load.messages)
        ack_seconds = [await _timed(producer.send(payload)) for _ in range(load.acks)]
    return BenchResult(publish_seconds, ack_seconds, consume_seconds)


async def _publish(producer: Producer, payload: bytes, messages: int) -> float:
    """Seconds until all messages are stored. Raises the error of the first message that is not."""
    start = time.perf_counter()
    receipts: list[asyncio.Future[MessageId]] = []
    for number in range(messages):
        await producer.ready()
        receipts.append(producer.send(payload))
        if number % TICK_MESSAGES == TICK_MESSAGES - 1:
            await asyncio.sleep(0)
    await producer.flush()
    seconds = time.perf_counter() - start
    for receipt in receipts:
        receipt.result()
    return seconds


async def _timed(receipt: asyncio.Future[MessageId]) -> float:
    start = time.perf_counter()
    await receipt
    return time.perf_counter() - start


async def _consume(client: Client, topic: str, messages: int) -> float:
    async with client.subscribe(topic, "bench", type="exclusive", start="earliest") as subscription:
        start, remaining = time.perf_counter(), messages
        while remaining:
            try:
                async with asyncio.timeout(CONSUME_SECONDS):
                    batch = await subscription.take(min(remaining, TICK_MESSAGES))
            except TimeoutError:
                raise errors.ConnectionLost(
                    f"no message received for {CONSUME_SECONDS:g} s, {remaining} outstanding",
                    hint="the broker may be overloaded",
                ) from None
            subscription.ack_through(batch[-1])
            remaining -= len(batch)
        return time.perf_counter() - start
