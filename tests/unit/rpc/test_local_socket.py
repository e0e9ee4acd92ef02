"""The broker's local socket as a file: whose it is, what a dead process leaves, and paths that are long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.metadata.store import MemoryStore
from icestream.rpc import local_socket
from icestream.rpc.link import open_link
from tests.support.local_broker import local_broker


def long_path(folder: Path) -> Path:
    deep = folder
    while len(os.fsencode(deep)) <= limits.SOCKET_PATH_BYTES_MAX:
        deep /= "a-directory-of-some-length"
    deep.mkdir(parents=True)
    return deep / "broker.sock"


@pytest.mark.parametrize("is_long", [False, True])
def test_only_its_own_account_may_use_it(tmp_path: Path, is_long: bool) -> None:
    path = long_path(tmp_path) if is_long else tmp_path / "broker.sock"
    with local_socket.bind(path) as listener:
        listener.listen()
        mode = path.stat().st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
        with local_socket.connect(path) as other:
            listener.accept()[0].close()
            assert other.fileno() >= 0


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    local_socket.bind(path).close()
    assert path.exists()
    with pytest.raises(errors.ConnectionLost, match="no broker answers"):
        local_socket.connect(path)
    with local_socket.bind(path) as listener:
        listener.listen()
        local_socket.connect(path).close()


def test_the_socket_of_a_live_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    with local_socket.bind(path) as listener:
        listener.listen()
        with pytest.raises(errors.ConfigurationError, match="another broker listens"):
            local_socket.bind(path)
        local_socket.connect(path).close()


def test_the_socket_of_a_live_process_with_a_full_queue_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    waiting: list[socket.socket] = []
    with local_socket.bind(path) as listener:
        listener.listen(0)
        with contextlib.suppress(errors.ConnectionLost):
            while len(waiting) < 100:
                waiting.append(local_socket.connect(path))
        assert 0 < len(waiting) < 100
        with pytest.raises(errors.ConfigurationError, match="another broker listens"):
            local_socket.bind(path)
    for connection in waiting:
        connection.close()


def test_a_missing_directory_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="cannot listen"):
        local_socket.bind(tmp_path / "none" / "broker.sock")


def test_a_listener_that_never_greets_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_OPEN_SECONDS_MAX", 0.05)
    path = tmp_path / "broker.sock"
    with local_socket.bind(path) as listener:
        listener.listen()
        with pytest.raises(errors.ConnectionLost, match="does not answer"):
            asyncio.run(open_link_and_close(path))


async def open_link_and_close(path: Path) -> None:
    (await open_link(path, "test")).close()


def test_a_connection_over_a_long_path_works(tmp_path: Path) -> None:
    path = long_path(tmp_path)

    async def talk() -> int:
        async with local_broker(path, MemoryStore()):
            link = await open_link(path, "test")
            answer = await link.call("metadata_revision", {})
            link.close()
            return int(answer["revision"])

    assert asyncio.run(talk()) == 0


def test_calls_in_flight_fail_when_the_broker_disconnects(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"

    async def talk() -> None:
        async with local_broker(path, MemoryStore()) as broker:
            link = await open_link(path, "test")
            calls = [asyncio.ensure_future(link.call("metadata_get", {"key": "/"})) for _ in range(500)]
            await asyncio.sleep(0)
            link.close()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(outcome) for outcome in done} <= {dict, errors.ConnectionLost}
            with pytest.raises(errors.ConnectionLost):
                await link.call("metadata_get", {"key": "/"})
            assert broker.listener is not None

    asyncio.run(talk())
