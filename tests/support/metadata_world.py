"""The clients of a metadata store: what they wrote, what each was told, and what must be stored after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from icestream import errors
from icestream.metadata import command as cmd
from icestream.metadata.node_store import NodeStore
from icestream.metadata.watch import Changes
from tests.support.metadata_machine import entries

PAIRS = ("/pair/a", "/pair/b", "/pair/c")  # always written together


@dataclass
class MetadataWorld:
    sent: int = 0
    writes: dict[str, list[bytes | None]] = field(default_factory=dict)  # per key, in order; None: deleted
    confirmed: dict[str, int] = field(default_factory=dict)  # per key: how many of them are certain
    revisions: dict[int, object] = field(default_factory=dict)  # what each answered revision was
    ids: set[int] = field(default_factory=set)
    waiting: int = 0

    async def put(self, store: NodeStore, key: str, size: int = 10) -> None:
        value = self._next(size)
        await self._write({key: value}, lambda: store.put(key, value))

    async def delete(self, store: NodeStore, key: str) -> None:
        await self._write({key: None}, lambda: store.delete(key))

    async def put_pairs(self, store: NodeStore, size: int = 10) -> None:
        value = self._next(size)
        operations = [cmd.Put(key, value) for key in PAIRS]

        async def call() -> int:
            return (await store.txn([], operations)).revision

        await self._write(dict.fromkeys(PAIRS, value), call)

    async def allocate(self, store: NodeStore) -> None:
        try:
            allocated = await store.allocate_id("x")
        except errors.OutcomeUnknown:
            return
        assert allocated not in self.ids, "an id was given twice"
        self.ids.add(allocated)

    def _next(self, size: int) -> bytes:
        self.sent += 1
        return b"%d." % self.sent + bytes(size)

    async def _write(self, values: dict[str, bytes | None], call: Callable[[], Awaitable[int]]) -> None:
        """The writes of one key must follow each other; an unknown outcome may come true later."""
        for key, value in values.items():
            self.writes.setdefault(key, []).append(value)
        counts = {key: len(self.writes[key]) for key in values}
        try:
            revision = await call()
        except errors.OutcomeUnknown:
            return
        except errors.IcestreamError:  # nothing was stored
            for key in values:
                del self.writes[key][counts[key] - 1]
            return
        self.confirmed.update(counts)
        first_values = self.revisions.setdefault(revision, values)
        assert first_values == values or None in values.values(), f"revision {revision} was two things"

    # --- after a restart ---

    def check(self, store: NodeStore) -> None:
        stored = entries(store)
        for key, written in self.writes.items():
            value = stored[key].value if key in stored else None
            certain = self.confirmed.get(key, 0)
            possible = written[max(certain - 1, 0) :] if certain else [None, *written]
            assert value in possible, f"{key}: {value!r} is none of {possible!r}"
            # what is there now is what stays
            self.writes[key] = [value]
            self.confirmed[key] = 1
        assert len({stored[key].value if key in stored else None for key in PAIRS}) == 1, "half a transaction"
        assert set(stored) <= {*self.writes, "/counters/x"}
        assert store.node.machine.revision >= max(self.revisions, default=0), "a revision was forgotten"
        assert all(entry.mod_revision <= store.node.machine.revision for entry in stored.values())


async def watch_all(store: NodeStore, seen: list[int]) -> None:
    """Follows every change and checks that none is missing or doubled."""
    after = await store.revision()
    watch = store.watch("", after)
    try:
        while True:
            changes = await anext(watch)
            assert isinstance(changes, Changes)
            assert changes.revision == after + 1
            after = changes.revision
            seen.append(after)
    except errors.IcestreamError:
        return


async def together(*calls: Awaitable[None]) -> None:
    await asyncio.gather(*calls)


async def live(store: NodeStore, world: MetadataWorld, size: int = 900) -> None:
    """Fills some files, takes three snapshots, frees what they cover."""
    await together(*(world.put(store, f"/k/{number}", size) for number in range(4)))
    await world.put_pairs(store, size)
    for _ in range(3):
        for number in range(7):
            await together(
                world.put(store, f"/k/{number % 5}", 2 * size), world.put_pairs(store), world.allocate(store)
            )
        await store.snapshots.take()
    await world.delete(store, "/k/1")
    await together(world.put(store, "/k/2"), world.put(store, "/k/3"), world.put_pairs(store))
