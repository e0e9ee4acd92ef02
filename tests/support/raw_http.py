"""HTTP by hand: exactly these bytes go out, exactly those come back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

WAIT_SECONDS = 10.0


class RawResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class RawHttp:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, *, has_body: bool = True) -> RawResponse:
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
            size = int(headers["content-length"]) if has_body else 0
            return RawResponse(int(line.split()[1]), headers, await self._reader.readexactly(size))

    async def get(self, target: str, headers: str = "") -> RawResponse:
        await self.send(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode())
        return await self.reply()

    async def until_closed(self) -> bytes:
        """All bytes up to the end of the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read()
        return b""

    async def is_closed(self) -> bool:
        """True if the other side has closed the connection without sending more."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class RawHttpContext:
    """Opens connections, and closes them all."""

    def __init__(self) -> None:
        self._open: list[RawHttp] = []

    async def __call__(self, port: int) -> RawHttp:
        connection = RawHttp(*await asyncio.open_connection("127.0.0.1", port))
        self._open.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self._open:
            await connection.close()
