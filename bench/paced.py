"""Publishes messages of 100 B at a steady rate, in bursts, and says when each burst was sent and where it stands.

python -m bench.paced ADDRESS TOPIC RATE BURST SECONDS

One line of JSON: [[first offset, messages, time of sending in ns], …], and how late the last burst was. The time is
that of the wall clock when the burst is handed to the client: then an application has published it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

import icestream

PAYLOAD = bytes(range(100))
WAITING_MAX = 200


async def publish(address: str, topic: str, rate: int, burst: int, seconds: float) -> None:
    sent: list[tuple[int, int, int]] = []
    late = 0.0

    async def answered(futures: list[asyncio.Future[icestream.MessageId]], at_ns: int) -> None:
        first = (await futures[0]).offset
        last = (await futures[-1]).offset
        if last - first != len(futures) - 1:
            raise RuntimeError(f"{len(futures)} messages from {first} to {last}")
        sent.append((first, len(futures), at_ns))

    async with icestream.connect(address, wait=30) as client, client.producer(topic) as producer:
        began, waiting = time.monotonic(), set[asyncio.Task[None]]()
        for number in range(int(seconds * rate / burst)):
            due = began + number * burst / rate
            late = max(0.0, time.monotonic() - due)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await producer.ready()
            at_ns = time.time_ns()
            futures = [producer.send(PAYLOAD) for _ in range(burst)]
            waiting.add(task := asyncio.create_task(answered(futures, at_ns)))
            task.add_done_callback(waiting.discard)
            if len(waiting) > WAITING_MAX:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*waiting)
    print(json.dumps({"sent": sorted(sent), "late_seconds": late}))


def main(words: list[str]) -> None:
    if len(words) != 5:
        sys.exit(__doc__)
    address, topic, rate, burst, seconds = words
    uvloop.run(publish(address, topic, int(rate), int(burst), float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
