"""Keeps the metadata store of a broker busy, over the broker's local socket, as its lake process does.

    python -m bench.raft.metadata_work SOCKET RATE SECONDS

Puts of 256 bytes at a steady rate, each awaited. Says "ready" when the first one is answered, and {puts, seconds} when
the time is over.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from icestream.metadata.remote_store import RemoteStore
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.runtime.loop import loop_factory
from icestream.runtime.randomness import SystemRandomness

VALUE = bytes(256)
KEYS = 1_000


async def work(socket: Path, rate: float, seconds: float) -> None:
    keeper = LinkKeeper(socket, "bench", SystemClock())
    keeping = asyncio.create_task(keeper.run())
    store = RemoteStore(keeper, SystemClock(), SystemRandomness())
    await store.ready()
    await store.put("/bench/0", VALUE)
    print("ready", flush=True)
    start, puts = time.monotonic(), 0
    while (now := time.monotonic()) < start + seconds:
        await asyncio.sleep(start + puts / rate - now)
        await store.put(f"/bench/{puts % KEYS}", VALUE)
        puts += 1
    print(json.dumps({"puts": puts, "seconds": time.monotonic() - start}), flush=True)
    keeping.cancel()


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    socket, rate, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(work(Path(socket), float(rate), float(seconds)))


if __name__ == "__main__":
    main()
