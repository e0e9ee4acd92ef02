"""The connections of the lake process: silent, slow and idle ones, over real sockets, and the reserve of the node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import limits
from icestream.metadata.store import MemoryStore
from icestream.processes.lake_process import run_lake
from icestream.runtime.connection_room import RoomState
from icestream.runtime.instance import NODE_TOKEN_HEADER
from tests.support.catalog_servers import settings_of
from tests.support.local_broker import local_broker
from tests.support.raw_http import RawHttp, RawHttpContext

pytestmark = pytest.mark.asyncio
PLACES = 4
TOKEN = "t" * 32
HOST = b"Host: 127.0.0.1\r\n"
# A request whose head is complete and whose body is not.
SLOW_BODY = b"POST /api/v1/namespaces HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n{"


class LakeListener:
    def __init__(self) -> None:
        self.port = 0
        self.reports: asyncio.Queue[RoomState] = asyncio.Queue()


@contextlib.asynccontextmanager
async def lake_process(path: Path, places: int = PLACES) -> AsyncIterator[LakeListener]:
    """A lake process without a broker, in this one."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    lake = LakeListener()
    serving = asyncio.create_task(
        run_lake(
            settings_of(f"data_dir={path}", "ports.lake=0"),
            ready.set_result,
            node_token=TOKEN,
            on_crowding=lake.reports.put_nowait,
            connections_max=places,
        )
    )
    lake.port = await ready
    try:
        yield lake
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[LakeListener]:
    async with lake_process(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[RawHttpContext]:
    connecting = RawHttpContext()
    yield connecting
    await connecting.close()


async def report(lake: LakeListener) -> RoomState:
    async with asyncio.timeout(10):
        return await lake.reports.get()


@pytest.mark.parametrize(
    "part", [b"", b"GET /livez HTTP/1.1\r\nHost: 127", SLOW_BODY], ids=["silent", "slow head", "slow body"]
)
async def test_idle_connections_do_not_lock_out_clients(
    lake: LakeListener, connect: RawHttpContext, part: bytes
) -> None:
    crowd = [await connect(lake.port) for _ in range(3 * PLACES)]
    for http in crowd[-PLACES:]:
        await http.send(part)
    for _ in range(2 * PLACES):
        asking = await connect(lake.port)
        assert (await asking.get("/livez")).status == 200


async def test_idle_connections_are_closed_first_and_the_longest_idle_first(
    lake: LakeListener, connect: RawHttpContext
) -> None:
    idle = [await connect(lake.port) for _ in range(PLACES)]
    for http in (*idle, idle[0]):  # the first is now the one that asked last
        assert (await http.get("/livez")).status == 200
    newest = await connect(lake.port)
    assert (await newest.get("/livez")).status == 200
    assert await idle[1].is_closed()
    assert (await idle[0].get("/livez")).status == 200


async def test_a_full_room_is_reported_and_so_is_its_end(
    tmp_path: Path, lake: LakeListener, connect: RawHttpContext
) -> None:
    # Only the broker knows whether security is on, and so whether everybody may see the details.
    async with local_broker(settings_of(f"data_dir={tmp_path}").local_socket, MemoryStore()):
        asking = await connect(lake.port)
        while (await asking.get("/readyz")).status != 200:
            pass  # each answer takes a turn of the loop, in which the link is opened
        await asking.close()
        await check_reports(lake, connect)


async def check_reports(lake: LakeListener, connect: RawHttpContext) -> None:
    crowd = [await connect(lake.port) for _ in range(PLACES + 1)]
    full = await report(lake)
    assert (full.listener, full.open, full.busy, full.evicted, full.refused) == ("lake", PLACES, 0, 1, 0)
    lines = (await (await connect(lake.port)).get("/readyz?verbose")).body.decode().splitlines()
    assert lines[1].startswith(f"[!] connections: lake: {PLACES} of {PLACES} are open, silent and idle ones are closed")
    for http in crowd:
        await http.close()
    assert not (await report(lake)).is_crowded


async def test_the_pipeline_is_served_while_all_connections_are_busy(
    tmp_path: Path, connect: RawHttpContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def wait(*_: object) -> None:
        begun.release()
        await may_go.wait()

    monkeypatch.setattr("icestream.lake.guard.Guard._forward", wait)
    async with lake_process(tmp_path) as lake:
        busy = [await connect(lake.port) for _ in range(PLACES)]
        for http in busy:
            await http.send(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
            await begun.acquire()
        assert (await report(lake)).is_refusing
        stranger, forger, own = [await connect(lake.port) for _ in range(3)]
        assert (await stranger.get("/livez")).status == 503
        assert (await forger.get("/livez", f"{NODE_TOKEN_HEADER}: {'x' * 32}\r\n")).status == 503
        assert await stranger.is_closed()
        await own.send(f"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n{NODE_TOKEN_HEADER}: {TOKEN}\r\n\r\n".encode())
        async with asyncio.timeout(10):
            await begun.acquire()  # it is being answered
        may_go.set()


async def test_silent_connections_cannot_fill_the_reserve(
    tmp_path: Path, connect: RawHttpContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "API_CONNECTIONS_RESERVED", 2)
    may_go = asyncio.Event()
    begun = asyncio.Semaphore(0)

    async def wait(*_: object) -> None:
        begun.release()
        await may_go.wait()

    monkeypatch.setattr("icestream.lake.guard.Guard._forward", wait)
    async with lake_process(tmp_path, places=1) as lake:
        busy = await connect(lake.port)
        await busy.send(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        await begun.acquire()
        silent = [await connect(lake.port) for _ in range(4)]
        own = await connect(lake.port)
        await own.send(f"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n{NODE_TOKEN_HEADER}: {TOKEN}\r\n\r\n".encode())
        async with asyncio.timeout(10):
            await begun.acquire()
        assert await silent[0].is_closed()
        may_go.set()


@pytest.mark.parametrize("part", [b"", b"G", b"GET /livez HTTP/1.1\r\nHost: 127"])
async def test_a_head_that_is_not_complete_in_time_ends_the_connection(
    tmp_path: Path, connect: RawHttpContext, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(limits, "HTTP_HEAD_SECONDS_MAX", 0.05)
    async with lake_process(tmp_path) as lake:
        http = await connect(lake.port)
        await http.send(part)
        assert await http.is_closed()
        later = await connect(lake.port)
        assert (await later.get("/livez")).status == 200
        await later.send(part or b"P")
        assert await later.is_closed(), "the next head of a connection has no more time"


@pytest.mark.parametrize("part", [b"", b"\r\n"], ids=["nothing", "a line end, which begins no request"])
async def test_an_idle_connection_is_closed(
    tmp_path: Path, connect: RawHttpContext, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(limits, "API_IDLE_SECONDS", 0.05)
    async with lake_process(tmp_path) as lake:
        http = await connect(lake.port)
        assert (await http.get("/livez")).status == 200
        await http.send(part)
        assert await http.is_closed()


async def test_pipelined_requests_are_all_answered(lake: LakeListener, connect: RawHttpContext) -> None:
    http: RawHttp = await connect(lake.port)
    await http.send(3 * (b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n") + b"GET /livez HTT")
    assert [(await http.reply()).status for _ in range(3)] == [200] * 3
    await http.send(b"P/1.1\r\n" + HOST + b"\r\n")
    assert (await http.reply()).status == 200
