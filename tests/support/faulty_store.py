"""The metadata store of tests: in memory, with the faults that a remote or replicated store can have."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import Entries, MemoryStore
from icestream.runtime.clock import Clock

Hook = Callable[[], Awaitable[object]]


class FaultyStore(MemoryStore):
    """A MemoryStore that fails as configured, and without configuration works like one.

    survives_close  `close` does nothing: the next broker finds the same content, as on a disk
    delay           every call waits for a random number of turns of the loop

    Faults that can be set at any time. The store's own expiry of keys is not subject to them.

        is_down         every call raises NotReady
        gets_left       so many `get` calls succeed, the following raise NotReady
        errors          raised by the next calls of `submit` and `get`, one each
        refuse          commands that are rejected with MetadataFull
        before_txn      awaited once before the next transaction: a concurrent change between read and write
        lose(fate)      the reply of the next transaction is lost (see there); `after_lost` is awaited once after that
        halt_at(write)  the process ends in this write: it never returns (see there)

    Recorded: `commands` and their number `writes`, and the keys of `get` in `reads`.
    """

    def __init__(
        self, clock: Clock | None = None, *, survives_close: bool = False, delay: random.Random | None = None
    ) -> None:
        super().__init__(clock)
        self._survives_close = survives_close
        self._delay = delay
        self.is_down = False
        self.gets_left: int | None = None
        self.errors: list[errors.IcestreamError] = []
        self.refuse: Callable[[cmd.Command], bool] = lambda _: False
        self.before_txn: Hook | None = None
        self.after_lost: Hook | None = None
        self._fates: list[str] = []
        self._undelivered: list[cmd.Command] = []
        self._halts: Callable[[int, bytes], bool] = lambda _number, _client: False
        self._applies_halted = False
        self.halted = asyncio.Event()
        self.commands: list[cmd.Command] = []
        self.writes = 0
        self.reads: list[str] = []

    # --- faults ---

    def lose(self, *fates: str) -> None:
        """The next transactions raise OutcomeUnknown.

        done    the transaction is applied
        never   it is not applied
        late    it is applied when `deliver` is called, as if it had been delayed by the network
        """
        self._fates += fates

    async def deliver(self) -> list[cmd.Answer]:
        """Applies the delayed transactions, whatever faults are set; returns their answers."""
        commands, self._undelivered = self._undelivered, []
        return [await self._apply(command) for command in commands]

    def halt_at(self, write: int, *, applied: bool) -> None:
        """The write of this number, counted from now, never returns; `applied` says whether it was applied."""
        number_of_halt = self.writes + write
        self._halt(lambda number, _: number == number_of_halt, applied=applied)

    def halt_named_clients(self) -> None:
        """Commands with the name of a client are applied and never return, until `resume`."""
        self._halt(lambda _, client: bool(client), applied=True)

    def _halt(self, when: Callable[[int, bytes], bool], *, applied: bool) -> None:
        self._halts = when
        self._applies_halted = applied
        self.halted = asyncio.Event()

    def resume(self) -> None:
        """Lets writes return again; those that were halted before never do."""
        self._halts = lambda _number, _client: False

    # --- the store ---

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        if isinstance(command, cmd.ExpireTtlKeys):
            return await super().submit(command, client, sequence)
        self._check_up()
        self._raise_next_error()
        number, self.writes = self.writes, self.writes + 1
        self.commands.append(command)
        if self.refuse(command):
            return cmd.Rejected(errors.MetadataFull.code, "the metadata store is full")
        if isinstance(command, cmd.Txn):
            before_txn, self.before_txn = self.before_txn, None
            if before_txn is not None:
                await before_txn()
            if self._fates:
                await self._lose(command)
        if not self._halts(number, client):
            return await self._apply(command, client, sequence)
        if self._applies_halted:
            await self._apply(command, client, sequence)
        self.halted.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a halted write returned")

    async def _lose(self, command: cmd.Command) -> None:
        fate = self._fates.pop(0)
        if fate == "done":
            await self._apply(command)
        elif fate == "late":
            self._undelivered.append(command)
        after_lost, self.after_lost = self.after_lost, None
        if after_lost is not None:
            await after_lost()
        raise errors.OutcomeUnknown("the reply was lost")

    async def _apply(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        await self._wait()
        answer = await super().submit(command, client, sequence)
        await self._wait()
        return answer

    async def renew(self, key: str, revision: int) -> bool:
        self._check_up()
        return await super().renew(key, revision)

    async def get(self, key: str) -> Entry | None:
        self._check_up()
        self._raise_next_error()
        if self.gets_left is not None:
            self.gets_left -= 1
            if self.gets_left < 0:
                raise errors.NotReady("the metadata store is down")
        self.reads.append(key)
        await self._wait()
        return await super().get(key)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        self._check_up()
        await self._wait()
        return await super().list(prefix, after, limit)

    async def close(self) -> None:
        if not self._survives_close:
            await super().close()

    def _check_up(self) -> None:
        if self.is_down:
            raise errors.NotReady("the metadata store is down")

    def _raise_next_error(self) -> None:
        if self.errors:
            raise self.errors.pop()

    async def _wait(self) -> None:
        for _ in range(self._delay.randrange(4) if self._delay else 0):
            await asyncio.sleep(0)
