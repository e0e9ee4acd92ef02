"""The child process of the scenario `keyshared`: consumes a backlog message by message and acks each of them.

python -m bench.key_client ADDRESS TOPIC SUBSCRIPTION TYPE MESSAGES_PER_KEY FAIL_EVERY

Says `ready`, then waits for a line on its standard input, so that several of them begin together. It ends when nothing
came for QUIET_SECONDS, and prints one line of JSON: messages acked, and when the first and the last of them came by the
clock that all processes of a machine share. Every FAIL_EVERY-th message is given back once (0: none).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

import icestream
from icestream.client.subscribe_call import TypeName

QUIET_SECONDS = 2.0


class Tally:
    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = 0.0


async def consume(messages: icestream.Subscription, fail_every: int, tally: Tally) -> None:
    async for message in messages:
        if fail_every and not message.offset % fail_every and not message.redelivery_count:
            message.nack()
            continue
        message.ack()
        tally.count += 1


async def watch(tally: Tally) -> None:
    """Until nothing came for a while; notes when the last message came, to a hundredth of a second."""
    seen, quiet_since = -1, time.monotonic()
    while time.monotonic() - quiet_since < QUIET_SECONDS:
        await asyncio.sleep(0.01)
        if tally.count != seen:
            seen, quiet_since = tally.count, time.monotonic()
            tally.first = tally.first or quiet_since
            tally.last = quiet_since


async def run(address: str, topic: str, subscription: str, kind: TypeName, per_key: int, fail_every: int) -> None:
    tally = Tally()
    async with icestream.connect(address, wait=30) as client:
        print("ready", flush=True)
        sys.stdin.readline()
        failure = {"base_delay_ms": 0, "max_delay_ms": 0}
        more = {"messages_per_key": per_key} if per_key > 1 else {}
        tally.first = time.monotonic()
        subscribed = client.subscribe(topic, subscription, type=kind, start="earliest", failure=failure, **more)
        async with subscribed as messages:
            consuming = asyncio.create_task(consume(messages, fail_every, tally))
            await watch(tally)
            consuming.cancel()
    print(json.dumps({"messages": tally.count, "first": tally.first, "last": tally.last}))


def main(words: list[str]) -> None:
    match words:
        case [address, topic, subscription, "exclusive" | "shared" | "key-shared" as kind, per_key, fail_every]:
            uvloop.run(run(address, topic, subscription, kind, int(per_key), int(fail_every)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
