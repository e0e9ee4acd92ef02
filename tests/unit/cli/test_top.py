"""`icestream top`: a table of a broker at work, and how two looks become one."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from icestream import BlockingProducer, connect_sync, testing
from icestream.cli.broker_http import http_get
from icestream.cli.top import COLUMNS, GAUGES, RATES, Sample, TopicSample, parse_metrics, rows, summary
from tests.support.command_line import icestream
from tests.support.serve_process import COMMAND, WAIT_SECONDS


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as test_broker:
        with connect_sync(test_broker.address) as client, client.producer("/default/orders") as producer:
            producer.send_all([b"a", b"b"])
            with client.subscribe("/default/orders", "s", start="earliest"):
                pass
        yield test_broker


def here(broker: testing.TestBroker) -> tuple[str, ...]:
    return ("--broker", str(broker.node.settings.local_socket))


def test_once_shows_the_topics(broker: testing.TestBroker) -> None:
    ran = icestream("top", "--once", "--interval", "0.1", *here(broker), "--output", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ("/default/orders", 2, 1) in [(row["topic"], row["lag"], row["subscriptions"]) for row in ran.document]
    assert tuple(ran.document[0]) == COLUMNS


def test_the_busiest_topic_is_shown_among_any_number(broker: testing.TestBroker) -> None:
    with connect_sync(broker.address) as client:
        for number in range(130):
            client.create_topic(f"/default/a{number:03}")
        with client.producer("/default/zzz") as producer, stopping(producer):
            ran = icestream("top", "--once", "--interval", "0.5", "--limit", "1", *here(broker), "--output", "json")
    assert [row["topic"] for row in ran.document] == ["/default/zzz"]
    assert ran.document[0]["messages_per_second"] > 0


@contextlib.contextmanager
def stopping(producer: BlockingProducer) -> Iterator[None]:
    """Sends until the end of the block."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            producer.send(b"x")

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        is_over.set()
        sending.join()


def test_output_to_a_pipe_is_one_table(broker: testing.TestBroker) -> None:
    ran = icestream("top", "--interval", "0.1", *here(broker))
    lines = ran.out.splitlines()
    assert lines[0].split()[0] == "topic"
    assert len([line for line in lines if line.startswith("/default/orders ")]) == 1


def test_at_a_terminal_it_refreshes_until_ctrl_c(broker: testing.TestBroker) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "top", "--interval", "0.1", *here(broker)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        try:
            os.close(theirs)
            shown = b""
            while shown.count(b"/default/orders") < 3:
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            while shown := _read(ours):
                assert b"Traceback" not in shown
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()
    os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the writing end is closed
        return b""


def test_without_a_broker() -> None:
    ran = icestream("top", "--once", "--broker", "nowhere/broker.sock")
    assert (ran.code, ran.out) == (11, "")
    assert "start a broker with `icestream serve`" in ran.err


def test_the_busiest_topic_is_first_and_a_recreated_one_is_not_negative() -> None:
    before = Sample(0, {"/d/a": TopicSample(100, 1000, 0, 1, 1, 1), "/d/b": TopicSample(0, 0, 0, 0, 0, 0)})
    now = Sample(
        2_000_000_000,
        {
            "/d/a": TopicSample(5, 50, 7, 1, 1, 1),
            "/d/b": TopicSample(20, 400, 0, 0, 0, 0),
            "/d/c": TopicSample(0, 0, 9, 0, 0, 0),
        },
    )
    shown_rows = [(row[0], str(row[1]), str(row[2]), row[3]) for row in rows(before, now)]
    assert shown_rows == [("/d/b", "10", "200 B/s", 0), ("/d/c", "0", "0 B/s", 9), ("/d/a", "0", "0 B/s", 7)]


def test_the_metrics_that_are_shown_exist(broker: testing.TestBroker) -> None:
    status, body = http_get("127.0.0.1", broker.node.services.http.port, "/metrics")
    assert (status, set(parse_metrics(body.decode()))) == (200, {*RATES, *GAUGES})


def test_the_whole_broker_in_a_line() -> None:
    text = (
        "# TYPE icestream_publish_messages_total counter\nicestream_publish_messages_total 30\n"
        '# TYPE icestream_connections gauge\nicestream_connections{listener="native"} 2\n'
        'icestream_connections{listener="local"} 1\n# TYPE other gauge\nother 5\n'
    )
    before, now = Sample(0, {}, {"icestream_publish_messages_total": 10.0}), Sample(10**9, {}, parse_metrics(text))
    assert summary(before, now) == "20 published/s, 3 connections"
    assert summary(Sample(0, {}), Sample(1, {})) == ""
