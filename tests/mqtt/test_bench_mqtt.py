"""`icestream bench mqtt` against a broker: what it counts, and that it leaves nothing behind."""

from __future__ import annotations

import time

import pytest

from icestream.cli.mqtt_load_client import PAYLOAD_BYTES_MIN, SequenceCheck, encode_payload
from tests.support.command_line import icestream
from tests.support.mqtt_server import IcestreamServer, MqttServer

SMALL = ("--publishers", "3", "--subscribers", "3", "--messages", "40", "--size", "64")
FLOWS = {"fan-in": (120, 120), "fan-out": (40, 120), "shared": (120, 120)}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("scenario", FLOWS)
def test_a_flow_arrives_once(mqtt_server: MqttServer, scenario: str, qos: int) -> None:
    ran = icestream(
        "bench", "mqtt", scenario, *SMALL, "--qos", str(qos), "--mqtt", f"127.0.0.1:{mqtt_server.port}",
        "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    report = ran.document
    assert (report["published"], report["delivered"]) == FLOWS[scenario]
    assert (report["missing"], report["gaps"], report["repeats"], report["stuck"]) == (0, 0, 0, 0)
    assert report["publish_messages_per_second"] > 0


def test_r29_sessions_return_to_what_was_published(mqtt_server: MqttServer) -> None:
    ran = icestream(
        "bench", "mqtt", "persistent-session", *SMALL, "--cycles", "2", "--seconds", "0.05",
        "--mqtt", f"127.0.0.1:{mqtt_server.port}", "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    report = ran.document
    assert report["delivered"] == 3 * report["published"] > 0
    assert (report["missing"], report["gaps"], report["repeats"], report["stuck"]) == (0, 0, 0, 0)
    assert report["connections"] == 3 * 3 + 2 * 3 + 3


def test_a_connect_storm_counts_its_clients(mqtt_server: MqttServer) -> None:
    address = f"127.0.0.1:{mqtt_server.port}"
    ran = icestream("bench", "mqtt", "connect", "--clients", "30", "--mqtt", address)
    assert ran.code == 0, ran.err
    assert "connects_per_second" in ran.out


def test_without_an_address_the_port_is_that_of_the_broker(mqtt_server: MqttServer) -> None:
    if not isinstance(mqtt_server, IcestreamServer):
        pytest.skip("another broker has no command that knows its port")
    ran = icestream("bench", "mqtt", "connect", "--clients", "2", "--broker", str(mqtt_server.folder / "data"))
    assert ran.code == 0, ran.err
    assert f"127.0.0.1:{mqtt_server.port}" in ran.out


def test_an_address_without_a_broker_is_a_lost_connection() -> None:
    assert icestream("bench", "mqtt", "connect", "--mqtt", "127.0.0.1:1").code == 11
    assert icestream("bench", "mqtt", "connect", "--mqtt", "nowhere").code == 4


def test_numbers_tell_gaps_from_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    check = SequenceCheck()
    for publisher, number in ((1, 0), (1, 1), (2, 0), (1, 4), (1, 1), (1, 5)):
        check.add(encode_payload(publisher, number, PAYLOAD_BYTES_MIN))
    assert (check.received, check.gaps, check.repeats) == (6, 2, 1)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 5)
    assert encode_payload(1, 2, 30) == bytes(3) + b"\1" + bytes(7) + b"\2" + bytes(7) + b"\5" + b"x" * 10
