"""The short way through plain records gives what the long way gives, and a start takes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.model.block import Numbering
from icestream.wal.recovery import FastReplay
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import A, B, Machine, batch, messages
from tests.support.sample_logs import LOGS, picture
from tests.support.small_log import open_small


def seen(log: WriteAheadLog) -> dict[str, Any]:
    """Everything that a start knows."""
    state = log.state
    return {
        "lsn": state.lsn,
        "topics": state.topics,
        "shards": {
            key: (shard.epoch, shard.floor, shard.synced, shard.written, shard.assigned, shard.reserved,
                  shard.reserve_pending, shard.append_time_us, shard.usage.held_bytes)
            for key, shard in state.shards.items()
        },
        "gaps": state.gaps,
        "producers": [
            (key, producer_id, window.expected, list(window.sent))
            for key, producer_id, window in state.producers.windows()
        ],
        "files": [(file.seal, [(key, vars_of(part)) for key, part in file.ranges()]) for file in log.lifecycle.files],
        "report": log.report,
    }  # fmt: skip


def vars_of(summary: Any) -> tuple[Any, ...]:
    return tuple(getattr(summary, name) for name in ("first", "end", "own_bytes", "max_time_us"))


@pytest.mark.parametrize("name", LOGS)
def test_a_start_restores_the_same_state_by_both_replays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = picture(name)
    try:
        short = seen(asyncio.run(open_small(drawn.disk(), drawn.mode)))
    except errors.LogDamaged:
        pytest.skip("this one does not start")
    monkeypatch.setattr(FastReplay, "apply", lambda *_: False)
    assert seen(asyncio.run(open_small(drawn.disk(), drawn.mode))) == short


async def mixed(mode: SyncMode) -> Machine:
    """Plain records among numbered ones, batches of several shards, several blocks in a section, a clock that steps."""
    machine = Machine(mode=mode)
    log = await machine.start()
    log.state.producers.open(5, 1)
    for number in range(40):
        await log.append([batch(log, A, b"%d" % number + bytes(700))])
        if number % 7 == 3:
            await log.append([batch(log, B, b"n", numbering=Numbering(5, 1, number // 7))])
        if number % 11 == 5:
            await log.append([batch(log, A, b"x", b"y"), batch(log, B, b"z"), batch(log, A, b"w")])
            machine.clock.step(-3600.0 if number % 2 else 7.0)
        if number == 20:
            await log.checkpoint()
    return machine


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(SyncMode))
async def test_a_mixed_log_gives_the_same_state_by_both_replays(
    mode: SyncMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast_results: list[bool] = []
    take = FastReplay.apply

    def counted(self: FastReplay, data: bytes, position: int, lsn: int) -> bool:
        fast_results.append(take(self, data, position, lsn))
        return fast_results[-1]

    replayed: list[dict[str, Any]] = []
    for way in (counted, lambda *_: False):
        machine = await mixed(mode)
        await machine.kill()
        monkeypatch.setattr(FastReplay, "apply", way)
        log = await machine.start()
        replayed.append(seen(log) | {"messages": (await messages(log, A), await messages(log, B))})
    assert replayed[0] == replayed[1]
    assert fast_results.count(True) > 20, "most of it is plain"
    assert fast_results.count(False) > 2
