"""MQTT clients of the scenario mqttsessions, in a process of their own.

python -m bench.mqtt_clients steady HOST PORT RATE TOPICS SECONDS
    one client publishes messages of 100 B with QoS 1 at a steady rate, to many topics in turn; another one follows.
    One line of JSON: messages that were delivered, and p50 and p99 in us from the call of `publish` to the delivery

python -m bench.mqtt_clients away HOST PORT FIRST COUNT FILTER
    that many durable sessions, each of which subscribes and leaves. FILTER: `{}` is the number of the session.
    One line of JSON: the seconds that it took

python -m bench.mqtt_clients back HOST PORT FIRST COUNT
    the clients of such sessions come back, one after the other, and leave again; an error if a session is gone.
    One line of JSON: the seconds that it took, and the longest of one
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from bench.figures import percentile
from icestream.cli.mqtt_load_client import LoadClient, MqttAccount, SequenceCheck, encode_payload

FOREVER = 2**32 - 1
BYTES = 100
AT_ONCE = 64
WARM_SECONDS = 2.0
TICKS_PER_SECOND = 100


async def steady(host: str, port: int, rate: int, topics: int, seconds: float) -> dict[str, float]:
    check = SequenceCheck()
    reader, writer = LoadClient(check.add), LoadClient()
    await reader.connect(host, port, "steady-reader", MqttAccount())
    await reader.subscribe("steady/#", 1)
    await writer.connect(host, port, "steady-writer", MqttAccount())
    began, number = time.monotonic(), 0
    measured = 0
    while (elapsed := time.monotonic() - began) < WARM_SECONDS + seconds:
        if elapsed >= WARM_SECONDS and not measured:
            measured = len(check.latency_ns)
        for _ in range(int(rate * elapsed) - number):
            await writer.publish(
                f"steady/{number % topics}", encode_payload(number % topics, number // topics, BYTES), 1, 1000
            )
            number += 1
        await asyncio.sleep(1 / TICKS_PER_SECOND / 10)
    await writer.settled()
    while check.received < number:
        reader.check()
        await asyncio.sleep(0.01)
    if check.gaps or check.repeats:
        raise RuntimeError(f"{check.gaps} gaps, {check.repeats} repeats")
    latencies = [latency / 1e3 for latency in check.latency_ns[measured:]]
    return {
        "messages": float(check.received),
        "p50_us": percentile(latencies, 0.5),
        "p99_us": percentile(latencies, 0.99),
    }


async def away(host: str, port: int, first: int, count: int, topic_filter: str) -> dict[str, float]:
    began, numbers = time.monotonic(), iter(range(first, first + count))

    async def work() -> None:
        for number in numbers:
            client = LoadClient()
            await client.connect(
                host, port, f"away-{number}", MqttAccount(), is_clean_start=False, expiry_seconds=FOREVER
            )
            await client.subscribe(topic_filter.format(number), 1)
            await client.disconnect()

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, count))))
    return {"seconds": time.monotonic() - began}


async def back(host: str, port: int, first: int, count: int) -> dict[str, float]:
    took: list[float] = []
    for number in range(first, first + count):
        began = time.monotonic()
        client = LoadClient()
        is_present = await client.connect(
            host, port, f"away-{number}", MqttAccount(), is_clean_start=False, expiry_seconds=FOREVER
        )
        if not is_present:
            raise RuntimeError(f"the session of away-{number} is gone")
        took.append(time.monotonic() - began)
        await client.disconnect()
    return {"seconds": sum(took), "longest": max(took)}


def main(words: list[str]) -> None:
    match words:
        case ["steady", host, port, rate, topics, seconds]:
            work = steady(host, int(port), int(rate), int(topics), float(seconds))
        case ["away", host, port, first, count, topic_filter]:
            work = away(host, int(port), int(first), int(count), topic_filter)
        case ["back", host, port, first, count]:
            work = back(host, int(port), int(first), int(count))
        case _:
            sys.exit(__doc__)
    print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    main(sys.argv[1:])
