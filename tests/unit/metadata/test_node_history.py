"""Any history of a metadata store on a disk that forgets and fails: every answer holds, and no transaction is cut."""

from __future__ import annotations

import asyncio
import errno

from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata.node_store import NodeStore
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from tests.support.hypothesis_effort import HALF
from tests.support.metadata_machine import MetadataMachine, settle
from tests.support.metadata_world import MetadataWorld, together, watch_all

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.integers(0, 3000)),
        st.tuples(st.just("pairs"), st.just(0), st.integers(0, 900)),
        st.tuples(st.just("delete"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
        st.tuples(st.just("allocate"), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["kill", "power loss", "close"]), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("fail sync"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("fail write"), st.integers(0, 2), st.just(0)),
    ),
    max_size=25,
)


@HALF
@given(STEPS, st.integers(0, 2**32))
def test_every_reply_holds_in_any_history(steps: list[tuple[str, int, int]], seed: int) -> None:
    asyncio.run(NodeHistory(seed).check(steps))


class NodeHistory:
    def __init__(self, seed: int) -> None:
        self.machine, self.world = MetadataMachine(seed), MetadataWorld()
        self.store: NodeStore | None = None
        self.seen: list[int] = []

    async def check(self, steps: list[tuple[str, int, int]]) -> None:
        for name, number, size in steps:
            await self.open()
            if not await self.machine.survives(self.step(name, number, size)):
                await self.end("power loss" if number % 2 else "kill")
            elif name in ("kill", "power loss"):
                await self.end(name)
            elif self.store is not None and self.store.stopped is not None:
                await self.machine.survives(self.store.close())
                await self.end("kill")
        await self.end("power loss")
        await self.open()
        await self.end("kill")

    async def open(self) -> None:
        """Opens it unless it is open; a crash that was asked for may hit the start itself."""
        while self.store is None:
            is_disturbed = bool(self.machine.disk._faults) or self.machine.disk._crash_in >= 0
            try:
                self.store = await self.machine.start()
            except (Crash, errors.IcestreamError):
                if not is_disturbed:
                    raise
                await self.end("kill")
                continue
            self.world.check(self.store)
            asyncio.ensure_future(watch_all(self.store, self.seen))  # noqa: RUF006 (it ends with the machine)
            await settle()

    async def step(self, name: str, number: int, size: int) -> None:
        assert self.store is not None
        match name:
            case "put":
                await together(*(self.world.put(self.store, f"/{key}", size) for key in {number, number // 2}))
            case "pairs":
                await self.world.put_pairs(self.store, size)
            case "delete":
                await self.world.delete(self.store, f"/{number}")
            case "allocate":
                await self.world.allocate(self.store)
            case "snapshot":
                try:
                    await self.store.snapshots.take()
                except OSError:
                    await settle()
            case "crash":
                self.machine.disk.crash_after(number)
            case "fail sync" | "fail write":
                self.machine.disk.fail(name.split()[1], errno.EIO, number)
            case "close":
                await self.store.close()
                self.store = None

    async def end(self, how: str) -> None:
        self.store = None
        await self.machine.end(how)


def test_a_store_that_does_not_sync_is_detected_by_the_histories() -> None:
    """A store that does not sync is found out by the histories: the disk forgets."""
    disk = SimulatedDisk(3)
    file = disk.create("x")
    disk.sync()
    file.write_at(0, bytes(4096))
    disk.chance.seed(1)
    disk.power_loss()
    assert len(disk.content("x")) < 4096
