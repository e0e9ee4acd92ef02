"""A port of a node for clients in other processes: what is measured and tested from outside.

    a frame     u32, little endian: the size of what follows; one msgpack array
    request     number, method, arguments…
    answer      number, 0, result | number, 1, code of the error, message | number, 2, event of a watch

    get      key                          -> nil, or value, create_revision, mod_revision, version
    put      key, value                   -> revision
    put_here key, value                   -> the same, by this node and once: who gets an error looks, or asks again
    submit   command, client, sequence    -> answer (metadata/command.py), each as msgpack bytes
    renew    key, revision                -> whether the lease is held
    list     prefix                       -> array of key, value
    revision                              -> number
    watch    after                        -> events: revision, array of key, value; a resync: revision, nil

The reads that one packet brings share one read index, and their answers one write.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import msgspec

from icestream import errors
from icestream.metadata import command as cmd
from icestream.metadata.node_store import NodeStore
from icestream.metadata.watch import Changes

SIZE: Final = struct.Struct("<I")
ANSWERED, FAILED, EVENT = 0, 1, 2
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_commands: Final[msgspec.msgpack.Decoder[cmd.Command]] = msgspec.msgpack.Decoder(cmd.Command)
Method = Callable[..., Awaitable[Any]]


def framed(value: object) -> bytes:
    body = _encode(value)
    return SIZE.pack(len(body)) + body


class Frames:
    """Bytes as they come in, arrays as they were sent."""

    def __init__(self) -> None:
        self._rest = b""

    def received(self, data: bytes) -> list[Any]:
        data = self._rest + data if self._rest else data
        found, at = [], 0
        while len(data) - at >= SIZE.size:
            (size,) = SIZE.unpack_from(data, at)
            if len(data) - at - SIZE.size < size:
                break
            at += SIZE.size
            found.append(_decode(data[at : at + size]))
            at += size
        self._rest = data[at:]
        return found


class ClientPort:
    def __init__(self, store: NodeStore, *, joins_reads: bool = True) -> None:
        self.store = store
        self.joins_reads = joins_reads
        self.methods: dict[str, Method] = {
            "get": self._get,
            "put": store.put,
            "submit": self._submit,
            "renew": store.renew,
            "list": self._list,
            "revision": store.revision,
        }
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _get(self, key: str) -> Any:
        entry = await self.store.get(key)
        return entry and (entry.value, entry.create_revision, entry.mod_revision, entry.version)

    async def _submit(self, command: bytes, client: bytes, sequence: int) -> bytes:
        return _encode(await self.store.submit(_commands.decode(command), client, sequence))

    async def _list(self, prefix: str) -> Any:
        return [(key, entry.value) for key, entry in await self.store.list_all(prefix)]


class _Connection(asyncio.Protocol):
    def __init__(self, port: ClientPort) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        gets: list[tuple[int, str]] = []
        for number, method, *arguments in self._frames.received(data):
            if method == "get" and self._port.joins_reads:
                gets.append((number, arguments[0]))
                continue
            if method == "put_here":
                self._put_here(number, cmd.Put(*arguments))
                continue
            work = self._watch(number, *arguments) if method == "watch" else self._answer(number, method, arguments)
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if gets:
            self._read(gets)

    def _read(self, gets: list[tuple[int, str]]) -> None:
        node = self._port.store.node

        def answer(read: asyncio.Future[None]) -> None:
            error = errors.NotReady("given up") if read.cancelled() else read.exception()
            if error is not None:
                self._say(*((number, FAILED, getattr(error, "code", ""), str(error)) for number, _ in gets))
                return
            answers: list[object] = []
            for number, key in gets:
                entry = node.machine.get(key)
                found = entry and (entry.value, entry.create_revision, entry.mod_revision, entry.version)
                answers.append((number, ANSWERED, found))
            self._say(*answers)

        try:
            node.read().add_done_callback(answer)
        except errors.IcestreamError as error:
            self._say(*((number, FAILED, error.code, str(error)) for number, _ in gets))

    def _put_here(self, number: int, put: cmd.Put) -> None:
        def answered(answer: asyncio.Future[cmd.Answer]) -> None:
            error = answer.exception()
            if error is None and isinstance(done := answer.result(), cmd.Done):
                self._say((number, ANSWERED, done.revision))
            else:
                self._say((number, FAILED, getattr(error, "code", ""), str(error)))

        try:
            self._port.store.begin(put).add_done_callback(answered)
        except errors.IcestreamError as error:
            self._say((number, FAILED, error.code, str(error)))

    async def _answer(self, number: int, method: str, arguments: list[Any]) -> None:
        try:
            self._say((number, ANSWERED, await self._port.methods[method](*arguments)))
        except errors.IcestreamError as error:
            self._say((number, FAILED, error.code, str(error)))

    async def _watch(self, number: int, after: int) -> None:
        try:
            async for change in self._port.store.watch("", after):
                events = None
                if isinstance(change, Changes):
                    events = [(event.key, event.value) for event in change.events]
                self._say((number, EVENT, change.revision, events))
        except errors.IcestreamError as error:
            self._say((number, FAILED, error.code, str(error)))

    def _say(self, *answers: object) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(map(framed, answers)))


class NodeRefused(Exception):
    """An error of the node, by its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ClientLink(asyncio.Protocol):
    """A client's end. Open one with `connect`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._watches: dict[int, Callable[[int, Any], None]] = {}
        self._number = 0
        self._out: list[bytes] = []
        self.lost = asyncio.Event()

    @classmethod
    async def connect(cls, port: int) -> ClientLink:
        _, link = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.lost.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the connection to the node broke"))

    def data_received(self, data: bytes) -> None:
        for number, status, *found in self._frames.received(data):
            if status == EVENT:
                self._watches[number](*found)
            elif number in self._watches:
                self.close()
            elif (waiting := self._waiting.pop(number, None)) is not None and not waiting.done():
                if status == ANSWERED:
                    waiting.set_result(found[0])
                else:
                    waiting.set_exception(NodeRefused(*found))

    def ask(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        self._number += 1
        answer = self._waiting[self._number] = self._loop.create_future()
        if self._transport is None:
            answer.set_exception(ConnectionError("the connection to the node broke"))
        else:
            self._write((self._number, method, *arguments))
        return answer

    def watch(self, after: int, tell: Callable[[int, Any], None]) -> None:
        self._number += 1
        self._watches[self._number] = tell
        self._write((self._number, "watch", after))

    def _write(self, request: object) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(framed(request))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
