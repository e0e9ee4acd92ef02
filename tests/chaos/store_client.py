"""How clients of a chaos run reach a store: the same few operations, whatever serves them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from bench.raft.client_port import ClientLink, NodeRefused
from icestream import errors
from icestream.metadata import command as cmd
from tests.chaos.nodes import ChaosNodes

CONNECT_SECONDS = 1.0
# The node says that it has not carried it out. Everything else may have been.
REFUSALS = frozenset({errors.NotReady.code, errors.DiskFull.code, errors.InFlightFull.code, "rejected"})
Tell = Callable[[int, Any], None]


class OperationFailed(Exception):
    """The operation was certainly not carried out."""


class StoreSession(Protocol):
    """One connection to one node. What it raises, other than NotDone, leaves the outcome unknown."""

    lost: asyncio.Event

    async def do(self, kind: str, keys: Sequence[str], arguments: tuple[Any, ...], name: bytes, number: int) -> Any:
        """Result and revision of an operation (history.py) on these keys."""

    async def allocate(self, count: int) -> int: ...

    async def put_ttl(self, key: str, ttl_ms: int) -> None: ...

    async def put_lease(self, key: str, ttl_ms: int) -> int:
        """The revision, for `renew`."""

    async def renew(self, key: str, revision: int) -> bool: ...

    async def is_there(self, key: str) -> bool: ...

    async def revision(self) -> int: ...

    def watch(self, after: int, tell: Tell) -> None: ...

    def close(self) -> None: ...


class StoreConnector(Protocol):
    can_repeat: bool  # a named operation is carried out once, however often it is sent
    has_counters: bool
    has_expiry: bool

    async def open(self, chance: random.Random) -> StoreSession:
        """To one of the nodes. Raises OSError."""


class IcestreamConnector:
    can_repeat = has_counters = has_expiry = True

    def __init__(self, nodes: ChaosNodes) -> None:
        self._nodes = nodes

    async def open(self, chance: random.Random) -> StoreSession:
        up = self._nodes.up
        if not up:
            raise ConnectionError("no node is up")
        async with asyncio.timeout(CONNECT_SECONDS):
            return IcestreamSession(await ClientLink.connect(chance.choice(up).client_port))


class IcestreamSession:
    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self.lost = link.lost

    async def do(self, kind: str, keys: Sequence[str], arguments: tuple[Any, ...], name: bytes, number: int) -> Any:
        if kind == "get":
            entry = await self._ask("get", keys[arguments[0]])
            return (entry[0], entry[2]) if entry else (None, 0)
        answer = await self._submit(command_of(kind, keys, arguments), name, number)
        return (answer.held if kind in ("cas", "txn") else None), answer.revision

    async def allocate(self, count: int) -> int:
        return (await self._submit(cmd.AllocateMonotonicId("chaos", count))).first_id

    async def put_ttl(self, key: str, ttl_ms: int) -> None:
        await self._submit(cmd.PutWithTtl(key, b"", ttl_ms))

    async def put_lease(self, key: str, ttl_ms: int) -> int:
        return (await self._submit(cmd.PutLease(key, b"", ttl_ms))).revision

    async def renew(self, key: str, revision: int) -> bool:
        return bool(await self._ask("renew", key, revision))

    async def is_there(self, key: str) -> bool:
        return await self._ask("get", key) is not None

    async def revision(self) -> int:
        return int(await self._ask("revision"))

    def watch(self, after: int, tell: Tell) -> None:
        self._link.watch(after, tell)

    def close(self) -> None:
        self._link.close()

    async def _submit(self, command: cmd.Command, name: bytes = b"", number: int = 0) -> cmd.Done:
        answer = cmd.decode_answer(await self._ask("submit", msgspec.msgpack.encode(command), name, number))
        if isinstance(answer, cmd.Rejected):
            raise OperationFailed(answer.message)
        return answer

    async def _ask(self, *request: Any) -> Any:
        try:
            return await self._link.ask(*request)
        except NodeRefused as error:
            if error.code in REFUSALS:
                raise OperationFailed(str(error)) from None
            raise


def command_of(kind: str, keys: Sequence[str], arguments: tuple[Any, ...]) -> cmd.Command:
    key = keys[arguments[0]]
    match kind, arguments:
        case "put", (_, value):
            return cmd.Put(key, value)
        case "delete", _:
            return cmd.Delete(key)
        case "cas", (_, expected, value):
            return cmd.CompareAndSwap(_compare(key, expected), value)
        case "txn", (_, expected, other, value, otherwise):
            return cmd.Txn([_compare(key, expected)], [cmd.Put(keys[other], value)], [cmd.Put(keys[other], otherwise)])
    raise AssertionError(f"{kind} {arguments} is no command")


def _compare(key: str, expected: bytes | None) -> cmd.Compare:
    return cmd.Absent(key) if expected is None else cmd.HasValue(key, expected)
