"""The child process of the scenario `pyclient`: sends messages with one client, and says what that cost it.

python -m bench.python_client ours|nats ADDRESS MESSAGES asyncio|uvloop

Both sides do the same: a future for each message, every answer looked at, positions without a hole over each 1,000.
What is needed to connect, and the first 2,000 messages, are not counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

import icestream

PAYLOAD = bytes(range(100))
# Messages between two turns of the loop, and how many such groups may wait for their answers.
GROUP = 1_000
GROUPS_WAITING = 4
WARM = 2 * GROUP

Group = list["asyncio.Future[Any]"]


async def send_all(messages: int, send: Callable[[], Awaitable[Group]], position: Callable[[Any], int]) -> int:
    """Sends groups, looks at every answer; how many came."""
    waiting: deque[Group] = deque()
    left, seen = messages // GROUP, 0
    while left or waiting:
        if left:
            waiting.append(await send())
            left -= 1
        if not left or len(waiting) >= GROUPS_WAITING:
            group = waiting.popleft()
            await group[-1]
            answers = [run.result() for run in group]
            if position(answers[-1]) - position(answers[0]) != len(answers) - 1:
                raise RuntimeError(f"{len(answers)} messages from {answers[0]} to {answers[-1]}")
            seen += len(answers)
    return seen


async def timed(messages: int, send: Callable[[], Awaitable[Group]], position: Callable[[Any], int]) -> None:
    await send_all(WARM, send, position)
    began, cpu = time.perf_counter(), time.process_time()
    seen = await send_all(messages, send, position)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps({"messages": seen, "seconds": seconds, "cpu_seconds": cpu_seconds, "rate": seen / seconds}))


async def ours(address: str, messages: int) -> None:
    async with icestream.connect(address) as client, client.producer("/default/python") as producer:

        async def send() -> Group:
            await producer.ready()
            group = [producer.send(PAYLOAD) for _ in range(GROUP)]
            await asyncio.sleep(0)
            return group

        await timed(messages, send, lambda stored: int(stored.offset))


async def with_nats(address: str, messages: int) -> None:
    import nats

    connection = await nats.connect(f"nats://{address}")
    stream = connection.jetstream(publish_async_max_pending=GROUP * (GROUPS_WAITING + 1))
    await stream.add_stream(name="python", subjects=["python"])

    async def send() -> Group:
        group = [await stream.publish_async("python", PAYLOAD) for _ in range(GROUP)]
        await asyncio.sleep(0)
        return group

    await timed(messages, send, lambda stored: int(stored.seq))
    await connection.close()


def main(words: list[str]) -> None:
    match words:
        case [("ours" | "nats") as side, address, messages, ("asyncio" | "uvloop") as loop]:
            work = (ours if side == "ours" else with_nats)(address, int(messages))
            (uvloop.run if loop == "uvloop" else asyncio.run)(work)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
