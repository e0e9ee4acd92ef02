"""Clients under load: they ask, are told, lose their nodes, turn to others, and write down everything.

    registers    groups of three keys; all clients work on the newest group, so that they meet, and a group is left
                 after some operations, so that each is short enough to be judged
    ids          one counter for all
    expiring     keys with a short time to live, put once or again, and leases that are renewed; looked at until gone
    watchers     everything, from the first revision on; behind what was told when the node is lost
Half of the register clients are named: they send an operation whose outcome is unknown again, and it counts once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, ClassVar, TypeVar

from bench.raft.client_port import NodeRefused
from tests.chaos.history import OK, REFUSED, Operation, OperationHistory, TtlRead, TtlWrite, WatchObservation
from tests.chaos.store_client import OperationFailed, StoreConnector, StoreSession

GROUP_OPERATIONS = 120
WIDTH = 3
ANSWER_SECONDS = 2.0
REPEATS_MAX = 3
PAUSE_SECONDS = 0.004
AWAY_SECONDS = 0.02
TTL_MS = (300, 1_500)
LOST = (OSError, TimeoutError, NodeRefused)
Found = TypeVar("Found")


def register_key(group: int, place: int) -> str:
    return f"/registers/{group}/{place}"


class Clients:
    def __init__(self, door: StoreConnector, history: OperationHistory, seed: int) -> None:
        self._door = door
        self.history = history
        self._seed = seed
        self._values = count(1)
        self._begun = 0
        self._recent: dict[tuple[int, int], bytes | None] = {}
        self._working: list[asyncio.Task[None]] = []
        self._watching: list[asyncio.Task[None]] = []
        self._is_over = False
        self.first_revision = 0  # of an empty store
        self.last_revisions = [0, 0]  # the last revision of each watcher

    def start(self, registers: int = 6) -> None:
        loop = asyncio.get_running_loop()
        kinds: list[type[Client]] = [RegisterClient] * registers + [ReadingClient] * 2
        kinds += [ExpiringClient, LeaseClient] if self._door.has_expiry else []
        kinds += [IdClient] if self._door.has_counters else []
        for number, kind in enumerate(kinds):
            self._working.append(loop.create_task(kind(self, number).run()))
        self._watching = [loop.create_task(self._watch(number)) for number in range(len(self.last_revisions))]

    async def finish(self) -> None:
        """After the last operation of each."""
        self._is_over = True
        await asyncio.gather(*self._working)

    async def close(self) -> None:
        for task in (*self._working, *self._watching):
            task.cancel()
        await asyncio.gather(*self._working, *self._watching, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        return self._is_over

    async def open(self, chance: random.Random) -> StoreSession:
        return await self._door.open(chance)

    # --- registers ---

    def next_operation(self, client: int, chance: random.Random, kinds: Mapping[str, int]) -> Operation:
        self._begun += 1
        group = self._begun // GROUP_OPERATIONS
        place, other = chance.randrange(WIDTH), chance.randrange(WIDTH)
        kind = chance.choices(tuple(kinds), tuple(kinds.values()))[0]
        value, otherwise = (b"%d" % next(self._values) for _ in range(2))
        # a value that a client has seen there lately: sometimes it is still current
        expected = self._recent.get((group, place)) if chance.random() < 0.8 else None
        arguments = {
            "get": (place,),
            "put": (place, value),
            "delete": (place,),
            "cas": (place, expected, value),
            "txn": (place, expected, other, value, otherwise),
        }[kind]
        return Operation(client, kind, group, arguments, time.monotonic_ns())

    def saw(self, operation: Operation) -> None:
        if operation.kind == "get":
            self._recent[operation.group, operation.arguments[0]] = operation.result
        elif operation.kind == "put":
            self._recent[operation.group, operation.arguments[0]] = operation.arguments[1]

    async def read_all(self, chance: random.Random) -> None:
        """Reads every used register once more: every answered write must be there."""
        session = await self.open(chance)
        try:
            for group in range(self._begun // GROUP_OPERATIONS + 1):
                for place in range(WIDTH):
                    operation = Operation(-1, "get", group, (place,), time.monotonic_ns())
                    keys = [register_key(group, at) for at in range(WIDTH)]
                    operation.result, operation.revision = await session.do("get", keys, (place,), b"", 0)
                    operation.completed, operation.outcome = time.monotonic_ns(), OK
                    self.history.operations.append(operation)
        finally:
            session.close()

    # --- watchers ---

    async def _watch(self, number: int) -> None:
        chance = random.Random(f"{self._seed} watcher {number}")
        watching: WatchObservation | None = WatchObservation(number, self.first_revision)
        while True:
            try:
                session = await self.open(chance)
            except LOST:
                await asyncio.sleep(AWAY_SECONDS)
                continue
            try:
                watching = await self._watch_node(number, session, watching)
            except (*LOST, OperationFailed):
                await asyncio.sleep(AWAY_SECONDS)
            finally:
                session.close()

    async def _watch_node(self, number: int, session: StoreSession, begun: WatchObservation | None) -> WatchObservation:
        """Watches one node until the connection is lost."""
        current = begun or WatchObservation(number, self.first_revision)
        if current not in self.history.watchings:
            self.history.watchings.append(current)

        def tell(revision: int, events: Any) -> None:
            nonlocal current
            if events is None:
                current = WatchObservation(number, revision)
                self.history.watchings.append(current)
            else:
                current.events.append((revision, [(key, value) for key, value in events]))
            self.last_revisions[number] = revision

        # a node that is behind what was told must catch up first
        async with asyncio.timeout(ANSWER_SECONDS):
            await session.revision()
        session.watch(current.events[-1][0] if current.events else current.after, tell)
        await session.lost.wait()
        return current


class Client:
    """One that asks one thing after the other."""

    def __init__(self, clients: Clients, number: int) -> None:
        self._clients = clients
        self._history = clients.history
        self._number = number
        self._chance = random.Random(f"{clients._seed} client {number}")
        self._session: StoreSession | None = None

    async def run(self) -> None:
        try:
            while not self._clients.is_over:
                await self.ask_one()
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._leave()

    async def ask_one(self) -> None:
        raise NotImplementedError

    async def ask_store(self, ask: Callable[[StoreSession], Awaitable[Found]]) -> Found:
        """Of the node that this client is at. Raises NotDone, or one of LOST when the outcome is unknown."""
        if self._session is None or self._session.lost.is_set():
            try:
                self._session = await self._clients.open(self._chance)
            except LOST as error:
                await asyncio.sleep(AWAY_SECONDS)
                raise OperationFailed(str(error)) from None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await ask(self._session)
        except (*LOST, OperationFailed):
            self._leave()
            raise
        if self._chance.random() < 0.02:
            self._leave()
        return answer

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class RegisterClient(Client):
    KINDS: ClassVar[Mapping[str, int]] = {"get": 35, "put": 25, "cas": 20, "txn": 10, "delete": 10}

    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, number)
        can_repeat = clients._door.can_repeat and number % 2 == 0
        self._name = b"chaos %d %d" % (clients._seed, number) if can_repeat else b""
        self._sequence = 0

    async def ask_one(self) -> None:
        operation = self._clients.next_operation(self._number, self._chance, self.KINDS)
        self._history.operations.append(operation)
        self._sequence += 1
        was_sent = False
        for _ in range(REPEATS_MAX if self._name else 1):
            try:
                operation.result, operation.revision = await self.ask_store(
                    lambda session: self._do(session, operation)
                )
                operation.completed, operation.outcome = time.monotonic_ns(), OK
                self._clients.saw(operation)
                return
            except OperationFailed:
                if not was_sent:
                    operation.completed, operation.outcome = time.monotonic_ns(), REFUSED
                    return
            except LOST:
                was_sent = True

    async def _do(self, session: StoreSession, operation: Operation) -> Any:
        keys = [register_key(operation.group, place) for place in range(WIDTH)]
        return await session.do(
            operation.kind, keys, operation.arguments, self._name, self._sequence if self._name else 0
        )


class ReadingClient(RegisterClient):
    """Is not held up by writes at a node that has lost the others: it sees whether such a node answers reads."""

    KINDS: ClassVar[Mapping[str, int]] = {"get": 1}


class IdClient(Client):
    async def ask_one(self) -> None:
        size, invoked = self._chance.randint(1, 5), time.monotonic_ns()
        try:
            first = await self.ask_store(lambda session: session.allocate(size))
        except (*LOST, OperationFailed):
            return
        self._history.ids.append((invoked, time.monotonic_ns(), first, size))
        await asyncio.sleep(PAUSE_SECONDS * 5)


class ExpiringClient(Client):
    """A key, put and perhaps renewed a few times, then looked at until it is gone."""

    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, number)
        self._keys = count(1)
        self.left: list[str] = []

    async def ask_one(self) -> None:
        key, ttl_ms = f"/expiring/{self._number}/{next(self._keys)}", self._chance.randint(*TTL_MS)
        for _ in range(self._chance.randint(1, 4)):
            await self._put(key, ttl_ms)
            await self._look(key)
            await asyncio.sleep(ttl_ms / 1000 * self._chance.random() * 0.8)
        await self._look_until_gone(key, ttl_ms / 10_000)

    async def _look_until_gone(self, key: str, pause_seconds: float) -> None:
        is_looked_for = True
        while is_looked_for:
            is_looked_for = await self._look(key)
            await asyncio.sleep(pause_seconds)

    async def _put(self, key: str, ttl_ms: int) -> None:
        write = TtlWrite(key, ttl_ms, time.monotonic_ns())
        self._history.ttl_writes.append(write)
        try:
            if await self.ask_store(lambda session: self._keep(session, key, ttl_ms)):
                write.completed = time.monotonic_ns()
        except (*LOST, OperationFailed):
            return

    async def _keep(self, session: StoreSession, key: str, ttl_ms: int) -> bool:
        await session.put_ttl(key, ttl_ms)
        return True

    async def _look(self, key: str) -> bool:
        """Reads the key once; True if it is to be read again."""
        invoked = time.monotonic_ns()
        try:
            is_present = await self.ask_store(lambda session: session.is_there(key))
        except (*LOST, OperationFailed):
            return True
        self._history.ttl_reads.append(TtlRead(key, invoked, time.monotonic_ns(), is_present))
        return is_present


class LeaseClient(ExpiringClient):
    """Puts each key once, as a lease, and renews it: that writes nothing, and must keep it all the same."""

    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, number)
        self._lease = ("", 0)

    async def _keep(self, session: StoreSession, key: str, ttl_ms: int) -> bool:
        if self._lease[0] != key:
            self._lease = (key, await session.put_lease(key, ttl_ms))
            return True
        self._clients.history.renewals += 1
        return await session.renew(*self._lease)
