"""A proxy between a client and a broker that breaks connections, with or without swallowing what was on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from icestream.client.address import parse_address


class CuttingProxy:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.connections = 0
        self._dead_connections = 0  # the first so many carry nothing any more
        self._is_blackhole = False
        self.swallows_answers = False
        self.swallows_requests = False
        self.is_open = True
        self.address = ""
        self._answers_may_pass = asyncio.Event()
        self._answers_may_pass.set()

    def hold_answers(self) -> asyncio.Event:
        """Answers wait until the event is set."""
        self._answers_may_pass = asyncio.Event()
        return self._answers_may_pass

    def blackhole(self) -> None:
        """Connections stay open, and nothing passes: as when packets are dropped on their way."""
        self._is_blackhole = True

    def heal(self) -> None:
        """New connections work. The others stay dead, as those do whose TCP waits long for its next try."""
        self._is_blackhole = False
        self._dead_connections = self.connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        self.connections += 1
        number = self.connections
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, there_writer}
        for task in (
            asyncio.create_task(self._pump(number, reader, there_writer, "swallows_requests")),
            asyncio.create_task(self._pump(number, there_reader, writer, "swallows_answers")),
        ):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallows: str
    ) -> None:
        try:
            while data := await reader.read(65536):
                if swallows == "swallows_answers":
                    await self._answers_may_pass.wait()
                is_dead = self._is_blackhole or number <= self._dead_connections
                if not is_dead and not getattr(self, swallows):
                    writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        """Closes every connection at once; new ones are accepted as before."""
        self.swallows_answers = self.swallows_requests = False
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def cutting_proxy(address: str) -> AsyncIterator[CuttingProxy]:
    target = parse_address(address)
    proxy = CuttingProxy(target.host, target.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
