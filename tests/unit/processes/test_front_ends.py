"""A front end is one class and one registration: the node starts, shows and closes it by the interface alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from icestream import errors
from icestream.frontends.front_end import FrontEnd, local_address
from icestream.observability.health import Check
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node import node_health, node_services, ports
from icestream.processes.node.front_ends import FRONT_ENDS
from icestream.processes.node.presentation.greeting import announcement, greeting
from icestream.runtime.connection_room import RoomState
from icestream.settings import Settings
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.anyio


class EchoFrontEnd(FrontEnd):
    """A front end without a socket, which records what the node does with it."""

    name = "echo"
    is_open = False

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        yield "ports.echo", 7

    async def listen(self) -> None:
        assert self._node.door.is_ready, "clients find the broker ready"
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    @property
    def open_ports(self) -> Mapping[str, int]:
        return {"echo_port": 7 if self.is_open else 0}

    @property
    def connections(self) -> Sequence[RoomState]:
        return [RoomState("echo", 10, 3, 1, 0, 0)]

    def checks(self) -> Iterator[Check]:
        yield Check("echo", True, "it echoes", is_needed=False)

    def greeting_lines(self) -> Iterator[str]:
        yield "echo port 7"

    def addresses(self) -> dict[str, object]:
        return {"echo": "127.0.0.1:7"}


class BrokenFrontEnd(EchoFrontEnd):
    name = "broken"

    async def listen(self) -> None:
        raise errors.ConfigurationError("the port of this front end cannot be used")


async def test_registered_front_end_is_started_shown_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_services, "FRONT_ENDS", (*FRONT_ENDS, EchoFrontEnd))
    node = await BrokerNode.start(node_settings(tmp_path, "memory"))
    echo = node.services.front_end(EchoFrontEnd)
    assert echo.is_open
    assert node.services.ports()["echo_port"] == 7
    assert "  echo port 7" in list(greeting(node))
    assert announcement(node)["echo"] == "127.0.0.1:7"
    assert "echo" in [check.name for check in node_health.checks(node)]
    assert ("echo", 3) in [(room.listener, room.open) for room in node.services.rooms()]
    await node.stop()
    assert not echo.is_open


async def test_a_front_end_that_cannot_listen_fails_the_start_and_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[EchoFrontEnd] = []

    class RecordedFrontEnd(EchoFrontEnd):
        async def listen(self) -> None:
            await super().listen()
            opened.append(self)

    monkeypatch.setattr(node_services, "FRONT_ENDS", (*FRONT_ENDS, RecordedFrontEnd, BrokenFrontEnd))
    with pytest.raises(errors.ConfigurationError, match="cannot be used"):
        await BrokerNode.start(node_settings(tmp_path, "memory"))
    assert [front_end.is_open for front_end in opened] == [False]


def test_ports_of_a_registered_front_end_are_checked_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "FRONT_ENDS", (*FRONT_ENDS, EchoFrontEnd))
    assert ("ports.echo", 7) in list(ports.own_ports(node_settings(tmp_path, "memory")))


@pytest.mark.parametrize(
    ("host", "address"), [("0.0.0.0", "127.0.0.1:1"), ("::", "[::1]:1"), ("10.0.0.1", "10.0.0.1:1")]
)
def test_local_address_replaces_wildcards(host: str, address: str) -> None:
    assert local_address(host, 1) == address
