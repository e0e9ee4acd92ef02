"""Publishes to many topics at a steady rate, and says what was acked and how soon. `care_run.py` starts it.

python -m bench.care_load ADDRESS PREFIX TOPICS RATE SECONDS FILE

RATE messages of 100 B a second in all, in bursts of 50, one topic after the other. A message begins with its offset, 8
bytes, which its ack confirms: so rows can be checked one by one. FILE gets a line for each burst: when it was sent, in
seconds since the start, and the milliseconds until all of it was acked. Stdout gets one line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
from pathlib import Path

import uvloop

import icestream

BURST, FILLERS = 50, 997
FILLER_BYTES = 92
UNACKED_BURSTS_MAX = 400


async def publish(address: str, prefix: str, topics: int, rate: int, seconds: float) -> list[tuple[float, float]]:
    """Returns for each burst when it was sent, in seconds, and the milliseconds until all of it was acked."""
    chance = random.Random(1)
    # Half of what is random: such bytes compress as text does.
    fillers = [chance.randbytes(FILLER_BYTES // 2).hex().encode() for _ in range(FILLERS)]
    ends, latencies, late = [0] * topics, list[tuple[float, float]](), 0.0
    unacked = set[asyncio.Task[None]]()

    async def acked(topic: int, first: int, futures: list[asyncio.Future[icestream.MessageId]], sent: float) -> None:
        for number, future in enumerate(futures):
            if (await future).offset != first + number:
                raise RuntimeError(f"message {first + number} of topic {topic} is at {(await future).offset}")
        latencies.append((sent - start, 1e3 * (time.monotonic() - sent)))

    async with icestream.connect(address, wait=30) as client:
        producers = [await client.producer(f"{prefix}{number}") for number in range(topics)]
        start = time.monotonic()
        for burst in range(int(seconds * rate / BURST)):
            topic, due = burst % topics, start + burst * BURST / rate
            late = max(late, time.monotonic() - due)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await producers[topic].ready()
            first, sent = ends[topic], time.monotonic()
            futures = [
                producers[topic].send(struct.pack(">Q", offset) + fillers[offset % FILLERS])
                for offset in range(first, first + BURST)
            ]
            ends[topic] += BURST
            unacked.add(task := asyncio.create_task(acked(topic, first, futures, sent)))
            task.add_done_callback(unacked.discard)
            if len(unacked) > UNACKED_BURSTS_MAX:
                await asyncio.wait(unacked, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*unacked)
        for producer in producers:
            await producer.close()
    print(json.dumps({"ends": ends, "late_seconds": late, "seconds": time.monotonic() - start}))
    return latencies


def main(words: list[str]) -> None:
    if len(words) != 6:
        sys.exit(__doc__)
    address, prefix, topics, rate, seconds, log = words
    latencies = uvloop.run(publish(address, prefix, int(topics), int(rate), float(seconds)))
    Path(log).write_text("\n".join(f"{at:.3f} {milliseconds:.3f}" for at, milliseconds in latencies))


if __name__ == "__main__":
    main(sys.argv[1:])
