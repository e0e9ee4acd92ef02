"""Clients of a node in a process of their own: the same request again and again, so many at a time.

    python -m bench.raft.load PORT KIND CONNECTIONS IN_FLIGHT SECONDS

KIND is put or get; a value has 256 bytes. Says {count, seconds, p50_ms, p99_ms} as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

from bench.figures import percentile
from bench.raft.client_port import ANSWERED, Frames, framed
from icestream.runtime.loop import loop_factory

KEY = "/bench/key"
VALUE = bytes(256)


class Caller(asyncio.Protocol):
    """Keeps `in_flight` requests under way until the time is over."""

    def __init__(self, kind: str, in_flight: int, until: float) -> None:
        arguments = ("put", KEY, VALUE) if kind == "put" else ("get", KEY)
        # the number of a request does not matter here: answers come in turn
        self._request = framed((1, *arguments))
        self._in_flight = in_flight
        self._until = until
        self._frames = Frames()
        self.took: list[float] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask(self._in_flight)

    def _ask(self, count: int) -> None:
        self._sent = time.monotonic()
        self._open = count
        self._transport.write(self._request * count)

    def data_received(self, data: bytes) -> None:
        for _, status, *found in self._frames.received(data):
            if status != ANSWERED:
                self._end(RuntimeError(f"the node refuses: {found}"))
                return
            self._open -= 1
            self.took.append(time.monotonic() - self._sent)
        if self._open:
            return
        if time.monotonic() < self._until:
            self._ask(self._in_flight)
        else:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionError("the connection broke"))

    def _end(self, error: Exception | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


async def load(port: int, kind: str, connections: int, in_flight: int, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    start = time.monotonic()
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(lambda: Caller(kind, in_flight, start + seconds), "127.0.0.1", port)
        callers.append(caller)
    await asyncio.gather(*(caller.over for caller in callers))
    took = [one for caller in callers for one in caller.took]
    return {
        "count": len(took),
        "seconds": time.monotonic() - start,
        "p50_ms": 1000 * percentile(took, 0.5),
        "p99_ms": 1000 * percentile(took, 0.99),
    }


def main() -> None:
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    port, kind, connections, in_flight, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(load(int(port), kind, int(connections), int(in_flight), float(seconds)))))


if __name__ == "__main__":
    main()
