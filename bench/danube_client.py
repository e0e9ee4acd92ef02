"""The child process of the scenario `danube` with Danube's own client for Python, `danube-client` on PyPI.

python -m bench.danube_client ADDRESS MESSAGES AT_ONCE

Sends messages of 100 B, so many at once, each awaited. What is needed to connect, and the first ones, are not counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

PAYLOAD = bytes(100)
WARM = 500


async def send_all(producer: Any, messages: int, at_once: int) -> None:
    left = messages

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send(PAYLOAD)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))


async def measure(address: str, messages: int, at_once: int) -> dict[str, float]:
    from danube import DanubeClientBuilder, DispatchStrategy

    client = await DanubeClientBuilder().service_url(f"http://{address}").build()
    building = client.new_producer().with_topic("/default/pypi").with_name("pypi")
    producer = building.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    await send_all(producer, WARM, at_once)
    began, cpu = time.perf_counter(), time.process_time()
    await send_all(producer, messages, at_once)
    found = {"messages": messages, "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
    await producer.close()
    return found


def main(words: list[str]) -> None:
    match words:
        case [address, messages, at_once]:
            print(json.dumps(asyncio.run(measure(address, int(messages), int(at_once)))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
