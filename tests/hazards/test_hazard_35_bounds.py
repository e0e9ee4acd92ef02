"""Hazard 35: what waits for the disk is bounded, and no read blocks the loop.

Fair shares between connections, paused sockets and send buffers: test_hazard_35_front_end.py.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from icestream import errors
from icestream.model.block import Numbering
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import LocalDirectory
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import ThreadOffload
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from tests.support.gated_directory import GatedDirectory
from tests.support.held_sink import HeldSink
from tests.support.machine import SMALL, TOPICS, A, B, Machine, batch, messages, publish, settle, turn

pytestmark = pytest.mark.asyncio
BOUND = 50_000


async def test_hazard_35_at_the_bound_submit_refuses_and_append_waits() -> None:
    machine, sink = Machine(in_flight_bytes=BOUND), HeldSink()
    log = await machine.start(sink=sink)
    answers = []
    for _ in range(9):
        answers.append(log.submit([batch(log, A, bytes(5000))]))
        await settle()
    with pytest.raises(errors.InFlightFull, match="bytes in flight") as refused:
        log.submit([batch(log, A, bytes(5000))])
    assert refused.value.retryable
    assert log.in_flight_bytes <= BOUND

    waiting = [asyncio.ensure_future(log.append([batch(log, B, bytes(5000))])) for _ in range(30)]
    await settle()
    assert log.in_flight_bytes <= BOUND
    assert log.shard(*B).assigned == 0, "admission comes before assignment: it can still be refused"
    while await turn(log, sink, 1):
        assert log.in_flight_bytes <= BOUND + 9 * 300, "records have a head and entries of their own"
    await asyncio.gather(*waiting)
    assert all(answer.done() for answer in answers)
    assert log.in_flight_bytes == 0
    assert len(await messages(log, A)) == 9
    assert len(await messages(log, B)) == 30


async def test_hazard_35_a_hanging_disk_keeps_the_queue_bounded() -> None:
    machine, sink = Machine(in_flight_bytes=BOUND), HeldSink()
    log = await machine.start(sink=sink)
    waiting = [asyncio.ensure_future(log.append([batch(log, A, bytes(2000))])) for _ in range(500)]
    for _ in range(20):
        await settle()
        machine.clock.advance(1.0)
        assert log.in_flight_bytes <= BOUND
    assert not any(answer.done() for answer in waiting)
    await turn(log, sink)
    await asyncio.gather(*waiting)
    assert log.shard(*A).assigned == 500


async def test_hazard_35_one_message_larger_than_the_bound_still_passes_alone() -> None:
    machine, sink = Machine(in_flight_bytes=1000), HeldSink()
    log = await machine.start(sink=sink)
    first = asyncio.ensure_future(log.append([batch(log, A, bytes(7000))]))
    second = asyncio.ensure_future(log.append([batch(log, A, bytes(7000))]))
    await settle()
    assert log.shard(*A).assigned == 1
    await turn(log, sink)
    await asyncio.gather(first, second)
    assert log.shard(*A).assigned == 2


async def test_hazard_35_waiting_appends_keep_their_order() -> None:
    """A connection that sends on while its first append waits for room keeps its order."""
    machine, sink = Machine(in_flight_bytes=10_000), HeldSink()
    log = await machine.start(sink=sink)
    log.submit([batch(log, A, bytes(6000))])
    await settle()
    large = asyncio.ensure_future(log.append([batch(log, A, b"first" + bytes(6000))]))
    await settle()
    small = asyncio.ensure_future(log.append([batch(log, A, b"second")]))  # there would be room for this one
    await turn(log, sink)
    await asyncio.gather(large, small)
    stored = await messages(log, A)
    assert (stored[1][:5], stored[2]) == (b"first", b"second")


async def test_hazard_35_waiting_appends_fail_when_the_node_stops() -> None:
    machine, sink = Machine(in_flight_bytes=BOUND), HeldSink()
    log = await machine.start(sink=sink)
    waiting = [asyncio.ensure_future(log.append([batch(log, A, bytes(6000))])) for _ in range(30)]
    await settle()
    machine.disk.fail("sync", 5)
    await turn(log, sink)
    left = [answer for answer in waiting if not answer.done()]
    assert not left, f"{len(left)} appends wait for ever for a log that has stopped"
    assert {type(answer.exception()) for answer in waiting} == {errors.OutcomeUnknown, errors.LogStopped}


async def test_hazard_35_close_waits_for_accepted_appends() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(5, 1)
    await publish(log, A, b"x", numbering=Numbering(5, 1, 0))
    retry = log.submit([batch(log, A, b"x", numbering=Numbering(5, 1, 0))])  # needs no write
    closing = asyncio.ensure_future(log.close())
    done, _ = await asyncio.wait({closing}, timeout=2.0)
    assert done, "the log waits for progress that a duplicate never makes"
    await closing
    assert retry.done()


async def test_hazard_35_every_read_of_a_message_happens_off_the_loop(tmp_path: Path) -> None:
    local = LocalDirectory(tmp_path / "wal")
    directory = GatedDirectory(local)
    options = LogOptions(**SMALL)
    log = await open_log_on(directory, options, {}, SystemClock(), SystemRandomness(), InlineSink(), ThreadOffload)
    try:
        for topic in TOPICS:
            log.declare_topic(topic)
        for _ in range(30):
            await publish(log, A, bytes(5000))
        directory.threads.clear()
        assert len(await messages(log, A)) == 30
        assert await log.reader.offset_for_time(A, 0) == 0
        async for chunk in log.reader.follow(1):
            assert chunk.records
            break
        await log.checkpoint()
        assert directory.threads, "the threads were recorded"
        assert threading.get_ident() not in directory.threads
    finally:
        await log.close()
        local.close()


async def test_hazard_35_appends_continue_while_a_read_waits_for_the_disk(tmp_path: Path) -> None:
    local = LocalDirectory(tmp_path / "wal")
    directory = GatedDirectory(local)
    options = LogOptions(**SMALL)
    log = await open_log_on(directory, options, {}, SystemClock(), SystemRandomness(), InlineSink(), ThreadOffload)
    try:
        log.declare_topic(TOPICS[0])
        await publish(log, A, b"first")
        directory.hold()
        reading = asyncio.ensure_future(log.reader.read(A, 0))
        await directory.wait_reached()
        for number in range(10):
            assert await publish(log, A, b"while a read stands") == number + 1
        assert not reading.done()
        directory.let_go()
        assert (await reading).sections[0].base_offset == 0
    finally:
        directory.let_go()
        await log.close()
        local.close()
