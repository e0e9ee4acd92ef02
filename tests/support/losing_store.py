"""A metadata store whose answers get lost: the transaction happens or not, at once or later, and nobody is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import Entries, MetadataStore
from icestream.metadata.watch import Changes, Resync


class LosingStore(MetadataStore):
    """`lose(how)` says what becomes of the next transaction:

    done        it happens, the answer is lost
    never       it does not happen, the answer is lost
    late        the answer is lost; it happens when `deliver` is called, as if it had been on its way
    """

    def __init__(self, behind: MetadataStore) -> None:
        self.behind = behind
        self.is_down = False
        self.gets_left: int | None = None  # until it goes down
        self.on_its_way: list[cmd.Command] = []
        self.after: Callable[[], Awaitable[None]] | None = None  # what others do right after a lost one
        self._how: list[str] = []

    def lose(self, *how: str) -> None:
        self._how += how

    async def deliver(self) -> list[cmd.Answer]:
        waiting, self.on_its_way = self.on_its_way, []
        return [await self.behind.submit(command) for command in waiting]

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self._check()
        if not self._how or not isinstance(command, cmd.Txn):
            return await self.behind.submit(command, client, sequence)
        how = self._how.pop(0)
        if how == "done":
            await self.behind.submit(command)
        elif how == "late":
            self.on_its_way.append(command)
        if self.after is not None:
            after, self.after = self.after, None
            await after()
        raise errors.OutcomeUnknown("the answer is lost")

    async def renew(self, key: str, revision: int) -> bool:
        self._check()
        return await self.behind.renew(key, revision)

    def _check(self) -> None:
        if self.is_down:
            raise errors.NotReady("the store is down")

    async def get(self, key: str) -> Entry | None:
        self._check()
        if self.gets_left is not None:
            self.gets_left -= 1
            if self.gets_left < 0:
                raise errors.NotReady("the store is down")
        return await self.behind.get(key)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        self._check()
        return await self.behind.list(prefix, after, limit)

    async def ready(self) -> None:
        await self.behind.ready()

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        return self.behind.watch(prefix, after)

    async def revision(self) -> int:
        return await self.behind.revision()

    async def close(self) -> None:
        await self.behind.close()
