"""Follows a topic with the Python client and says how long each message was under way, by its time of publishing.

python -m bench.burst_client ADDRESS TOPIC MESSAGES

It subscribes to what comes from now on and says `ready`. The last line is JSON: seconds of each message, and how many a
second came from the first to the last.
"""

from __future__ import annotations

import json
import sys
import time

import uvloop

import icestream


async def follow(address: str, topic: str, messages: int) -> None:
    waits: list[float] = []
    async with (
        icestream.connect(address, wait=30) as client,
        client.subscribe(topic, "bursts", type="exclusive", start="latest") as found,
    ):
        print("ready", flush=True)
        began = 0.0
        async for message in found:
            began = began or time.perf_counter()
            waits.append(time.time() - message.publish_time.timestamp())
            message.ack()
            if len(waits) >= messages:
                break
    print(json.dumps({"waits": waits, "rate": messages / (time.perf_counter() - began)}))


def main(words: list[str]) -> None:
    if len(words) != 3:
        sys.exit(__doc__)
    uvloop.run(follow(words[0], words[1], int(words[2])))


if __name__ == "__main__":
    main(sys.argv[1:])
