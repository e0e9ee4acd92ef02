"""Rounds of the pipeline in a process whose system calls are recorded: a real log, the tasks' own code, our own catalog
on a real disk. Only the metadata store is in memory: what it is told is said, as a line of the file `said`.

    pointer LOCATION            the catalog is about to let a table's pointer name this metadata file
    moved LOCATION              it does
    advance TOPIC SHARD OFFSET  the broker is about to take everything below for committed

    python -m tests.planted.rounds FOLDER
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from icestream.catalog import catalog_keys
from icestream.metadata import command as cmd
from tests.support.fault_world import FaultWorld

ROUNDS = 6


def main(folder: Path) -> None:
    asyncio.run(_rounds(folder))


async def _rounds(folder: Path) -> None:
    output = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    world = await FaultWorld.open(folder / "world")
    world.store.txn = _saying_pointers(world.store.txn, output)  # type: ignore[method-assign]
    world.ingest.committed = _saying_floors(world.ingest.committed, output)  # type: ignore[method-assign]
    harness = world.driver()
    for _ in range(ROUNDS):
        for _ in range(4):  # enough for files of the log to be done with, and used again
            await world.publish_some()
        await world.drain(harness)
    await world.check()
    await harness.lease.release()
    await world.close()


def _say(output: int, *words: object) -> None:
    os.write(output, " ".join(map(str, words)).encode() + b"\n")


def _saying_pointers(txn: Callable[..., Awaitable[Any]], output: int) -> Callable[..., Awaitable[Any]]:
    async def saying(compare: Sequence[cmd.Compare], then: Sequence[Any], *more: Any, **named: Any) -> Any:
        values = [
            operation.value
            for operation in then
            if isinstance(operation, cmd.Put) and operation.key.startswith(catalog_keys.RELATIONS)
        ]
        locations = [msgspec.msgpack.decode(value).get("location") for value in values]
        for location in locations:
            _say(output, "pointer", location)
        answer = await txn(compare, then, *more, **named)
        for moved in locations if answer.held else ():
            _say(output, "moved", moved)
        return answer

    return saying


def _saying_floors(committed: Callable[..., Awaitable[None]], output: int) -> Callable[..., Awaitable[None]]:
    async def saying(positions: Sequence[tuple[int, int, int]], *more: int) -> None:
        for position in positions:
            _say(output, "advance", *position)
        await committed(positions, *more)

    return saying


if __name__ == "__main__":
    main(Path(sys.argv[1]))
