"""etcd behind the same door, through the JSON of its gateway: a check of the checkers, against a store of good name.

    reads serializable      a node answers from what it has: stale, and the checkers must see it
Keys with a time to live and counters are not asked for: etcd has leases of whole seconds, and no counters.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.chaos.store_client import OperationFailed, StoreSession, Tell

CONNECT_SECONDS = 1.0


class EtcdConnector:
    can_repeat = has_counters = has_expiry = False

    def __init__(self, clients: Sequence[str], *, serializable: bool = False) -> None:
        self._clients = clients
        self._serializable = serializable

    async def open(self, chance: random.Random) -> StoreSession:
        host, _, port = chance.choice(self._clients).partition(":")
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
        return EtcdSession(reader, writer, host, int(port), serializable=self._serializable)


class EtcdSession:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, *, serializable: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._place = (host, port)
        self._serializable = serializable
        self._watching: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    async def do(self, kind: str, keys: Sequence[str], arguments: tuple[Any, ...], name: bytes, number: int) -> Any:
        key = keys[arguments[0]]
        if kind == "get":
            range_answer = await self._ask("kv/range", {"key": _text(key), "serializable": self._serializable})
            entry = range_answer["kvs"][0] if range_answer.get("kvs") else None
            return (base64.b64decode(entry["value"]), int(entry["mod_revision"])) if entry else (None, 0)
        if kind == "put":
            answer = await self._ask("kv/put", {"key": _text(key), "value": _text(arguments[1])})
        elif kind == "delete":
            answer = await self._ask("kv/deleterange", {"key": _text(key)})
        else:
            answer = await self._ask("kv/txn", _txn(kind, keys, arguments))
        succeeded = bool(answer.get("succeeded")) if kind in ("cas", "txn") else None
        return succeeded, int(answer["header"]["revision"])

    async def allocate(self, count: int) -> int:
        raise OperationFailed("etcd has no counters")

    async def put_ttl(self, key: str, ttl_ms: int) -> None:
        raise OperationFailed("not asked for")

    async def put_lease(self, key: str, ttl_ms: int) -> int:
        raise OperationFailed("not asked for")

    async def renew(self, key: str, revision: int) -> bool:
        raise OperationFailed("not asked for")

    async def is_there(self, key: str) -> bool:
        raise OperationFailed("not asked for")

    async def revision(self) -> int:
        return int((await self._ask("kv/range", {"key": _text("/")}))["header"]["revision"])

    def watch(self, after: int, tell: Tell) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(after, tell))

    async def _watch(self, after: int, tell: Tell) -> None:
        """A stream of JSON documents, one a line, in the chunks of HTTP/1.1."""
        watch_request = {"key": _text("/"), "range_end": _text("0"), "start_revision": str(after + 1)}
        try:
            await self._send("watch", {"create_request": watch_request})
            await self._reader.readuntil(b"\r\n\r\n")
            rest = b""
            while size := int(await self._reader.readline(), 16):
                rest += (await self._reader.readexactly(size + 2))[:-2]
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    _tell(json.loads(line)["result"], tell)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            pass
        finally:
            self.lost.set()

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._writer.transport.abort()

    async def _send(self, method: str, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"POST /v3/{method} HTTP/1.1\r\nHost: {self._place[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def _ask(self, method: str, document: dict[str, Any]) -> Any:
        try:
            await self._send(method, document)
            head = await self._reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line)
            body = await self._reader.readexactly(int(fields[b"content-length"]))
        except (asyncio.IncompleteReadError, KeyError) as error:
            self.lost.set()
            raise ConnectionError(f"etcd broke off: {error!r}") from None
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise ConnectionError(f"etcd says {body!r}")
        return json.loads(body)


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _txn(kind: str, keys: Sequence[str], arguments: tuple[Any, ...]) -> dict[str, Any]:
    key, expected = keys[arguments[0]], arguments[1]
    compare: dict[str, Any] = {"key": _text(key)}
    if expected is None:
        compare |= {"target": "VERSION", "result": "EQUAL", "version": "0"}
    else:
        compare |= {"target": "VALUE", "result": "EQUAL", "value": _text(expected)}
    if kind == "cas":
        return {"compare": [compare], "success": [_put(key, arguments[2])]}
    _, _, other, value, otherwise = arguments
    return {
        "compare": [compare],
        "success": [_put(keys[other], value)],
        "failure": [_put(keys[other], otherwise)],
    }


def _put(key: str, value: bytes) -> dict[str, Any]:
    return {"request_put": {"key": _text(key), "value": _text(value)}}


def _tell(result: dict[str, Any], tell: Tell) -> None:
    """Reports all events of one revision at once."""
    changes: dict[int, list[tuple[str, bytes | None]]] = {}
    for event in result.get("events", ()):
        entry = event["kv"]
        value = None if event.get("type") == "DELETE" else base64.b64decode(entry.get("value", ""))
        changes.setdefault(int(entry["mod_revision"]), []).append((base64.b64decode(entry["key"]).decode(), value))
    for revision, events in sorted(changes.items()):
        tell(revision, events)
