"""The HTTP ports beside the API: the broker's own, and the pipeline's. What names topics, checks and reasons needs the
right to describe the cluster; whether the process lives and is ready is told to everyone."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.lake.request_caller import BrokerCallers
from icestream.pipeline.driver.metrics_port import metrics_listener
from icestream.processes import pipeline_process
from icestream.rpc.handshake import HelloCredential
from icestream.runtime.clock import SystemClock
from tests.support.access_world import AccessWorld, access_world
from tests.support.local_broker import kept_link
from tests.support.raw_http import RawHttpContext, RawResponse

pytestmark = pytest.mark.asyncio
MONITOR = ("describe on cluster",)
# What each path needs.
OPEN, SCRAPER = "open", "scraper"
BROKER_PATHS = {
    "/livez": OPEN,
    "/readyz": OPEN,
    "/readyz?verbose": SCRAPER,
    "/metrics": SCRAPER,
    "/": OPEN,
}
PIPELINE_PATHS = {"/livez": OPEN, "/readyz": OPEN, "/metrics": SCRAPER, "/": OPEN}


async def get(port: int, path: str, token: str, headers: str = "") -> RawResponse:
    connect = RawHttpContext()
    try:
        http = await connect(port)
        return await http.get(path, headers + (f"Authorization: Bearer {token}\r\n" if token else ""))
    finally:
        await connect.close()


async def check_paths(world: AccessWorld, port: int, paths: dict[str, str]) -> None:
    for path, need in paths.items():
        for caller in (*world.strangers, "exact"):
            answer = await get(port, path, world.token(caller))
            if need == OPEN or caller == "exact":
                assert answer.status == (404 if path == "/" else 200), (path, caller, answer)
            else:
                assert answer.status == (401 if caller == "anonymous" else 403), (path, caller, answer)
                assert b"/shop/orders" not in answer.body
        forged = await get(port, path, "forged")
        assert forged.status == (401 if need == SCRAPER else 404 if path == "/" else 200), path


async def test_the_port_of_the_broker(tmp_path: Path) -> None:
    async with access_world(tmp_path, MONITOR) as world:
        port = world.node.services.http.port
        await check_paths(world, port, BROKER_PATHS)
        as_json = "Accept: application/json\r\n"
        assert (await get(port, "/readyz", "", as_json)).status == 401
        assert (await get(port, "/readyz", world.token("exact"), as_json)).status == 200
        refused = await get(port, "/metrics", "")
        assert refused.headers["www-authenticate"] == "Bearer"
        twice = f"Authorization: Bearer {world.token('exact')}\r\n"
        assert (await get(port, "/metrics", world.token("exact"), twice)).status == 401
        wal = await get(port, "/wal/1?from=0&to=1", world.token("exact"))
        assert wal.status == 403, "the token of a round opens the log, no right of a principal does"


async def test_a_reason_is_shown_to_principals_that_see_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with access_world(tmp_path, MONITOR) as world:
        port = world.node.services.http.port
        monkeypatch.setattr(world.node.broker, "is_ready", False)
        reasons = {caller: (await get(port, "/readyz", world.token(caller))).body for caller in ("anonymous", "exact")}
        assert reasons["anonymous"] == b"not ready\n"
        assert reasons["exact"].startswith(b"not ready: broker: ")


async def test_the_port_of_the_pipeline(tmp_path: Path) -> None:
    async with access_world(tmp_path, MONITOR) as world:
        node = world.node
        credential = HelloCredential(role="pipeline", secret=node.services.role_secrets.role_secret("pipeline"))
        failures: list[BaseException] = []
        async with kept_link(node.settings.local_socket, credential) as keeper:
            callers = BrokerCallers(keeper, SystemClock(), failures.append)

            async def check(request: pipeline_process.Request) -> None:
                await pipeline_process._check_scraper(callers, request)

            listener = metrics_listener(keeper, None, check)
            await listener.listen("127.0.0.1", 0)
            await check_paths(world, listener.port, PIPELINE_PATHS)
            await listener.close()
            await callers.stop()
        assert failures == []
