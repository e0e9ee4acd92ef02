"""`icestream bench`: its figures add up, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import socket

import pytest

from icestream import connect_sync, testing
from icestream.cli.bench import BenchResult, Load, figures, figures_text, percentile
from icestream.settings import Settings
from tests.support.command_line import icestream

SHORT = ("--messages", "3000", "--acks", "20", "--size", "10")


def test_with_a_broker_of_its_own_beside_another_one() -> None:
    with contextlib.ExitStack() as stack:
        ports = Settings().ports
        for port in (ports.native, ports.danube, ports.mqtt, ports.mqtt_ws):
            with contextlib.suppress(OSError):  # a broker that runs on this machine has it already
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        ran = icestream("bench", "--memory", *SHORT, "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    report = ran.document
    assert (report["broker"], report["messages"], report["payload_bytes"]) == ("memory", 3000, 10)
    assert 0 < report["ack_p50_seconds"] <= report["ack_p99_seconds"]
    assert report["publish_messages_per_second"] > 0
    assert report["consume_messages_per_second"] > 0


def test_against_a_broker_it_deletes_its_topic() -> None:
    with testing.broker() as broker:
        ran = icestream("bench", "--broker", broker.address, *SHORT)
        with connect_sync(broker.address) as client:
            assert client.list_topics() == []
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["broker", "load", "publish", "consume", "ack"]


def test_without_a_broker_and_with_two() -> None:
    assert icestream("bench", "--broker", "127.0.0.1:1", *SHORT).code == 11
    assert icestream("bench", "--broker", "127.0.0.1:1", "--memory").code == 4
    assert icestream("bench", "--messages", "0").code == 2


@pytest.mark.parametrize(("share", "expected"), [(50, 2.0), (99, 4.0), (25, 1.0), (26, 2.0)])
def test_a_percentile_is_one_of_the_samples(share: int, expected: float) -> None:
    assert percentile([3.0, 1.0, 4.0, 2.0], share) == expected


def test_rates_are_counts_by_seconds() -> None:
    load, result = Load(100, 10, 1), BenchResult(2.0, [0.001], 0.5)
    assert figures(load, result) == {
        "messages": 100,
        "payload_bytes": 10,
        "publish_messages_per_second": 50,
        "publish_bytes_per_second": 500,
        "consume_messages_per_second": 200,
        "ack_p50_seconds": 0.001,
        "ack_p99_seconds": 0.001,
    }
    assert figures_text(load, result) == {
        "load": "100 messages of 10 bytes",
        "publish": "50 messages/s, 500 B/s",
        "consume": "200 messages/s",
        "ack of one message": "1.000 ms (p50), 1.000 ms (p99)",
    }


def test_bench_removes_its_topic_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its table, nor messages that wait for one: no pipeline commits here."""
    monkeypatch.setattr("icestream.cli.bench.secrets.token_hex", lambda _: "mine")
    with testing.broker(storage="disk") as broker:
        where = ("--broker", str(broker.node.settings.data_dir))
        assert icestream("bench", *where, *SHORT).code == 0
        ran = icestream("topic", "delete", "/default/bench-mine", "--rest", "discard", "--yes", *where)
        assert (ran.code, "there is no topic" in ran.err) == (4, True)
