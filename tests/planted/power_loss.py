"""What a power loss at any moment of a recorded run would have left, and what a start makes of it."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

from icestream import errors
from icestream.model.sync_mode import SyncMode
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Inode, SimulatedDisk
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from tests.planted.messages import tokens_in
from tests.planted.order import OrderedAck, acks_in
from tests.planted.stores import options
from tests.support.syscall_recorder import UNFINISHED, Call, Event

_CHANGES = (Call.WRITE, Call.TRUNCATE, Call.ALLOCATE)
_NAMES = (Call.CREATE, Call.RENAME, Call.UNLINK)


def image(events: Sequence[Event], moment: int, seed: int) -> SimulatedDisk:
    """The disk after a power loss. What was synced is there; of the rest any sector and any prefix of names."""
    chance = random.Random(seed)
    disk = SimulatedDisk(seed)
    inodes = {number: _inode(changes, moment) for number, changes in _by_inode(events).items()}
    for inode in inodes.values():
        inode.lose_power(chance)
    for name, number in _names(events, moment, chance).items():
        disk.replace(name, bytes(inodes[number].cache) if number in inodes else b"")
    return disk


def _by_inode(events: Sequence[Event]) -> dict[int, list[Event]]:
    by_inode: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.call in (*_CHANGES, Call.SYNC):
            by_inode[event.inode].append(event)
    return by_inode


def _last_sync(events: Sequence[Event], call: Call, moment: int) -> int:
    """The begin of the last sync that has returned: only writes that were complete then are safe."""
    return max(
        (event.begin for event in events if event.call is call and event.end < moment and event.done), default=-1
    )


def _inode(events: Sequence[Event], moment: int) -> Inode:
    inode = Inode()
    safe = _last_sync(events, Call.SYNC, moment)
    changes = [event for event in events if event.call in _CHANGES and event.begin < moment]
    for event in changes:
        if event.end < safe:
            _change(inode, event)
    inode.sync()
    for event in changes:
        if event.end >= safe:
            _change(inode, event)
    return inode


def _change(inode: Inode, event: Event) -> None:
    if event.call is Call.WRITE:
        inode.write(event.position, event.data)
    elif event.call is Call.TRUNCATE or event.position > len(inode.cache):
        inode.resize(event.position)


def _names(events: Sequence[Event], moment: int, chance: random.Random) -> dict[str, int]:
    safe = _last_sync(events, Call.SYNC_DIRECTORY, moment)
    changes = [event for event in events if event.call in _NAMES and event.begin < moment and _happened(event, events)]
    unsafe = [event for event in changes if (event.begin if event.end == UNFINISHED else event.end) >= safe]
    lost = unsafe[chance.randint(0, len(unsafe)) :]
    names: dict[str, int] = {}
    for event in changes:
        if event in lost:
            continue
        if event.call is not Call.CREATE:
            names.pop(event.name, None)
        if event.call is not Call.UNLINK:
            names[event.target or event.name] = event.inode
    return names


def _happened(event: Event, events: Sequence[Event]) -> bool:
    """Of a renaming that a kill interrupted the next process tells whether it was done."""
    return event.done or (event.end == UNFINISHED and any(later.name == event.target for later in events))


def spread(events: Sequence[Event], points: int) -> list[int]:
    """The places of `points` acks among all of a run, evenly."""
    last = len(acks_in(events)) - 1
    return sorted({round(number * last / (points - 1)) for number in range(points)})


def loss_violations(events: Sequence[Event], mode: SyncMode, chosen: Sequence[int], *, seeds: int) -> list[str]:
    """Power fails in the moment in which each of the chosen acks leaves, `seeds` times; then the log is opened."""
    acks = acks_in(events)
    violations = []
    for number in chosen:
        floors = _floors(events, acks[number])
        for seed in range(seeds):
            disk = image(events, acks[number].event.begin, seed)
            violations += asyncio.run(_start_violations(disk, mode, acks[: number + 1], floors))
    return violations


def _floors(events: Sequence[Event], ack: OrderedAck) -> dict[tuple[int, int], int]:
    """The floors that the program had reported before an ack."""
    floors: dict[tuple[int, int], int] = {}
    for event in events:
        kind, *words = event.data.decode().split() if event.call is Call.SAY else [""]
        if kind == "floor" and event.begin < ack.event.begin:
            floors[int(words[0]), int(words[1])] = int(words[2])
    return floors


async def _start_violations(
    disk: SimulatedDisk, mode: SyncMode, acks: Sequence[OrderedAck], floors: dict[tuple[int, int], int]
) -> list[str]:
    moment = f"power loss at the ack of record {acks[-1].lsn}"
    try:
        log = await open_log_on(disk, options(mode), {}, SimulatedClock(), SeededRandomness(1), InlineSink())
    except errors.IcestreamError as error:
        return [f"{moment}: the log does not open again: {error}"]
    try:
        there = await tokens_in(log)
    except errors.LogDamaged as error:
        return [f"{moment}: the log opens, but what was acked cannot be read: {error}"]
    finally:
        await log.close()
    violations = []
    for ack in acks:
        token = there.get((*ack.key, ack.offset))
        if token is None:
            if mode is SyncMode.ALWAYS and ack.offset >= floors.get(ack.key, 0):
                violations.append(
                    f"{moment}: record {ack.lsn} (offset {ack.offset} of {ack.key}) was acked and is gone"
                )
        elif token != ack.token:
            violations.append(f"{moment}: offset {ack.offset} of {ack.key} was acked as {ack.token} and is {token} now")
    return violations
