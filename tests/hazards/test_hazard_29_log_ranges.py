"""Hazard 29, the log's part: ranges of log files for tasks elsewhere, under a lease, and never another file's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.broker.pipeline_service import LogLocation, PipelineService
from icestream.model.backlog_messages import Backlog, BacklogFile
from icestream.runtime.tasks import InlineOffload
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import log_name
from tests.support.held_offload import HeldOffload
from tests.support.machine import A, Machine, publish
from tests.support.raw_http import RawHttpContext, RawResponse
from tests.unit.internal_api.test_admin_calls import AdminClient, operated
from tests.unit.internal_api.test_pipeline_calls import backlog_of

pytestmark = pytest.mark.asyncio


class LogRangeClient:
    """A task on another machine: it requests ranges of a log file."""

    def __init__(self, ask: AdminClient, connect: RawHttpContext) -> None:
        self.ask = ask
        self._connect = connect
        self.backlog: Backlog
        self.file: BacklogFile
        self.tokens: dict[str, str] = {}  # of leases

    async def lease(self, name: str = "r1", epoch: int = 1, ttl_ms: int = 60_000) -> BacklogFile:
        self.backlog = await backlog_of(self.ask)
        self.file = self.backlog.files[0]
        leased = await self.ask("pipeline_lease", lease=name, epoch=epoch, files=[self.file.number], ttl_ms=ttl_ms)
        self.tokens[name] = leased["token"]
        return self.file

    async def get(self, target: str, token: str | None = None) -> RawResponse:
        http = await self._connect(int(self.backlog.address.rpartition(":")[2]))
        return await http.get(target, f"Authorization: Bearer {self.tokens['r1'] if token is None else token}\r\n")

    async def piece(self, start: int, end: int, lease: str = "r1", number: int | None = None) -> RawResponse:
        target = f"/wal/{number or self.file.number}?from={start}&to={end}&lease={lease}"
        return await self.get(target, self.tokens[lease])


@pytest_asyncio.fixture
async def task(tmp_path: Path) -> AsyncIterator[LogRangeClient]:
    connect = RawHttpContext()
    async with operated(tmp_path / "data") as ask:
        await ask("create_topic", topic="/default/orders")
        await ask.publish(5)
        yield LogRangeClient(ask, connect)
        await connect.close()


async def test_hazard_29_a_task_gets_the_bytes_of_its_lease(task: LogRangeClient) -> None:
    file = await task.lease()
    content = (Path(task.backlog.directory) / log_name(file.number)).read_bytes()
    whole = await task.piece(RECORDS_START, file.end)
    assert (whole.status, whole.body) == (200, content[RECORDS_START : file.end])
    assert whole.headers["content-type"] == "application/octet-stream"
    pieces = [(await task.piece(at, min(at + 100, file.end))).body for at in range(RECORDS_START, file.end, 100)]
    assert b"".join(pieces) == whole.body


async def test_hazard_122_the_token_of_a_round_opens_the_files_of_its_lease_alone(task: LogRangeClient) -> None:
    """Not those of another round, not after its end, and no made-up token."""
    file = await task.lease("r2")
    await task.lease()
    own, other = task.tokens["r1"], task.tokens["r2"]
    target = f"/wal/{file.number}?from={RECORDS_START}&to={file.end}&lease=r1"
    for token in ("", "x", own[:-1], own + "0", own.upper() + "é", other):
        assert (await task.get(target, token)).status == 403, token
    assert (await task.get(target.replace("lease=r1", "lease=r2"), own)).status == 403
    assert (await task.get(target)).status == 200
    await task.ask("pipeline_lease", lease="r1", epoch=1, files=[])
    assert (await task.get(target)).status == 410, "the round is over"
    assert (await task.piece(RECORDS_START, file.end, lease="r2")).status == 200


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("", ""), ("a", "5000"), ("5000", "b"), ("-1", "5000"), ("0", "5000"), ("4096", "4096"), ("4100", "4096"),
        ("4096", "9" * 30), ("4096", str(4096 + limits.LOG_RANGE_BYTES_MAX + 1)), ("4096", "60000"), ("٣", "5000"),
    ],
)  # fmt: skip
async def test_hazard_29_invalid_positions_are_refused(task: LogRangeClient, start: str, end: str) -> None:
    """The last record that is synced is the end, however long the file is."""
    file = await task.lease()
    reply = await task.get(f"/wal/{file.number}?from={quote(start)}&to={quote(end)}&lease=r1")
    assert reply.status == 400, reply


async def test_hazard_29_invalid_file_names_are_refused(task: LogRangeClient) -> None:
    await task.lease()
    for name in ("", "x", "-1", "1/2", "..%2f..%2fetc%2fpasswd", "9" * 30, "%D9%A3"):
        assert (await task.get(f"/wal/{name}?from=4096&to=5000&lease=r1")).status == 404, name
    assert (await task.piece(4096, 5000, number=999)).status == 410, "no lease holds it"
    await task.ask("pipeline_lease", lease="r1", epoch=1, files=[])
    assert (await task.piece(4096, 5000)).status == 410


async def test_hazard_29_an_expired_lease_reads_nothing(task: LogRangeClient) -> None:
    file = await task.lease()
    assert (await task.piece(RECORDS_START, file.end)).status == 200
    await task.lease("r2", epoch=2)
    assert (await task.piece(RECORDS_START, file.end)).status == 410, "a newer pipeline has taken over"
    assert (await task.piece(RECORDS_START, file.end, lease="r2")).status == 200
    await task.lease("r2", epoch=2, ttl_ms=1)
    clock = asyncio.get_running_loop().time
    until = clock() + 10
    while (reply := await task.piece(RECORDS_START, file.end, lease="r2")).status == 200 and clock() < until:
        pass
    assert reply.status == 410


async def test_hazard_29_files_under_a_lease_are_not_freed() -> None:
    machine = Machine()
    log = await machine.start()
    for _ in range(60):
        await publish(log, A, bytes(3000))
    first, second, third, *_ = (file.number for file in log.lifecycle.files)
    log.lifecycle.leases.hold("r", 1, [second], 5000)
    await log.advance_floor({A: 60})
    assert [file.number for file in log.lifecycle.files][:2] == [second, third], f"{first} is free"
    assert await log.reader.copy(second, RECORDS_START, RECORDS_START + 100)
    machine.clock.advance(5)
    await log.checkpoint()
    assert log.lifecycle.files == [], "the lease has expired"
    with pytest.raises(errors.PositionGone):
        await log.reader.copy(second, RECORDS_START, RECORDS_START + 100)
    with pytest.raises(errors.UnknownLogFile):
        await log.reader.copy(log.lifecycle.next_number, RECORDS_START, RECORDS_START + 100)


async def test_hazard_29_a_file_recycled_during_a_read_returns_nothing() -> None:
    machine = Machine()
    offload = HeldOffload()
    machine.offload = lambda name, count: offload if name == "wal-reads" else InlineOffload()
    log = await machine.start()
    for _ in range(60):
        await publish(log, A, bytes(3000))
    number = log.lifecycle.files[0].number
    log.lifecycle.leases.hold("r", 1, [number], 1000)
    offload.hold_results()
    reading = asyncio.ensure_future(log.reader.copy(number, RECORDS_START, RECORDS_START + 100))
    await offload.until_waiting()
    machine.clock.advance(limits.PIN_SECONDS_MAX + 1)
    await log.advance_floor({A: 60})
    assert number not in log.lifecycle.numbers()
    offload.release()
    with pytest.raises(errors.StaleRead):
        await reading


async def test_hazard_29_a_lease_that_expires_during_a_read_returns_nothing() -> None:
    machine = Machine()
    offload = HeldOffload()
    machine.offload = lambda name, count: offload if name == "wal-reads" else InlineOffload()
    log = await machine.start()
    await publish(log, A, bytes(3000))
    ingest = PipelineService(log, machine.clock, LogLocation("", "", ""), lambda name, topic_id: {})
    (file,) = (await ingest.backlog()).files
    for newcomer in (False, True):
        ingest.lease("r", 1, [file.number], 1000)
        offload.hold_results()
        reading = asyncio.ensure_future(ingest.copy("r", file.number, RECORDS_START, file.end))
        await offload.until_waiting()
        if newcomer:
            ingest.lease("of another", 2, [file.number], 1000)
        else:
            machine.clock.advance(1)
        offload.release()
        with pytest.raises(errors.LeaseLost):
            await reading
