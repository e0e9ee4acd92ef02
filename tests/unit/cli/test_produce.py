"""`icestream produce` against a broker: what it sends, what it says, and with which exit code."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream import connect_sync, error_codes, errors, limits, testing
from icestream.cli.message_input import LineSplitter, parse_json_line
from tests.support.command_line import icestream, icestream_process
from tests.support.serve_process import WAIT_SECONDS

TOPIC = "/default/orders"


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker() as test_broker:
        yield test_broker


@pytest.fixture
def topic() -> str:
    """A new topic name for every test."""
    return f"/default/{uuid.uuid4().hex}"


def stored(address: str, topic: str, count: int) -> list[tuple[bytes | None, bytes, dict[str, str]]]:
    stored_messages = []
    with connect_sync(address) as client, client.subscribe(topic, "look", start="earliest") as messages:
        for message in messages:
            stored_messages.append((message.key, message.payload, message.headers))
            message.ack()
            if len(stored_messages) == count:
                break
    return stored_messages


def test_each_line_is_a_message(broker: testing.TestBroker, topic: str) -> None:
    ran = icestream("produce", topic, "--broker", broker.address, given="one\n\nünü\nlast without an end".encode())
    assert (ran.code, ran.out, ran.err) == (0, "4 messages stored at offsets 0..3\n", "")
    payloads = [payload for _, payload, _ in stored(broker.address, topic, 4)]
    assert payloads == [b"one", b"", "ünü".encode(), b"last without an end"]


def test_key_and_headers_apply_to_every_message(broker: testing.TestBroker, topic: str) -> None:
    options = ("--key", "k", "--header", "a=b=c", "--header", "d=")
    assert icestream("produce", topic, "--broker", broker.address, *options, given=b"x\ny\n").code == 0
    assert stored(broker.address, topic, 2) == [
        (b"k", b"x", {"a": "b=c", "d": ""}),
        (b"k", b"y", {"a": "b=c", "d": ""}),
    ]


def test_json_lines_have_payload_key_and_headers(broker: testing.TestBroker, topic: str) -> None:
    lines = [
        {"payload": "text", "key": "own", "headers": {"h": "1"}},
        {"payload_base64": base64.b64encode(b"\xff\x00").decode()},
        {"payload": "", "offset": 9, "topic": "/elsewhere/x"},
    ]
    lines_input = "\n\n".join(map(json.dumps, lines)).encode()
    ran = icestream(
        "produce", topic, "--json", "--key", "k", "--broker", broker.address, "--output", "json", given=lines_input
    )
    assert ran.code == 0
    assert ran.document == {"stored": 3, "failed": 0, "offsets": [{"shard": 0, "first": 0, "last": 2}]}
    assert stored(broker.address, topic, 3) == [
        (b"own", b"text", {"h": "1"}),
        (b"k", b"\xff\x00", {}),
        (b"k", b"", {}),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json", "not a JSON message"),
        (b"[1]", "not a JSON message"),
        (b'{"payload": 1}', "not a JSON message"),
        (b'{"paylaod": "x"}', "paylaod"),
        (b"{}", "message without payload"),
        (b'{"payload_base64": "*"}', "not valid base64"),
        (b'{"payload": "a", "payload_base64": "YQ=="}', "both payload and payload_base64"),
        (b'{"payload": "\xff"}', "not a JSON message"),
    ],
)
def test_an_invalid_line_ends_the_run_after_the_lines_before_it(
    broker: testing.TestBroker, topic: str, line: bytes, words: str
) -> None:
    lines_input = b'{"payload": "good"}\n' + line + b'\n{"payload": "never sent"}\n'
    ran = icestream("produce", topic, "--json", "--broker", broker.address, given=lines_input)
    assert ran.code == error_codes.exit_code(errors.InvalidInput(""))
    assert ran.out == "1 message stored at offset 0\n"
    assert "icestream: line 2: " in ran.err
    assert words in ran.err
    assert "; 1 message before it stored" in ran.err


def test_a_file_of_many_messages_over_shards(broker: testing.TestBroker, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(50_000)))
    ran = icestream(
        "produce", topic, "--file", str(file), "--shards", "3", "--broker", broker.address, "--output", "json"
    )
    assert ran.code == 0
    assert (ran.document["stored"], ran.document["failed"]) == (50_000, 0)
    offsets = ran.document["offsets"]
    assert [offset["shard"] for offset in offsets] == [0, 1, 2]
    assert sum(offset["last"] - offset["first"] + 1 for offset in offsets) == 50_000


def test_a_key_is_the_bytes_that_the_shell_gave(broker: testing.TestBroker, topic: str) -> None:
    ran = icestream("produce", topic, "--key", os.fsdecode(b"\xff"), "--broker", broker.address, given=b"x\n")
    assert ran.code == 0
    assert stored(broker.address, topic, 1) == [(b"\xff", b"x", {})]
    shown = icestream("consume", topic, "--format", os.fsdecode(b"\xfe") + "%k", "--broker", broker.address)
    assert (shown.code, os.fsencode(shown.out)) == (0, b"\xfe\xff\n")
    assert icestream("produce", topic, "--broker", os.fsdecode(b"\xff"), given=b"x\n").code == 4


def test_empty_input_produces_nothing(broker: testing.TestBroker, topic: str) -> None:
    ran = icestream("produce", topic, "--broker", broker.address)
    assert (ran.code, ran.out) == (0, "0 messages stored\n")


def test_a_topic_is_not_created_unless_allowed(broker: testing.TestBroker, topic: str) -> None:
    ran = icestream("produce", topic, "--no-create", "--broker", broker.address, given=b"x\n")
    assert (ran.code, ran.out) == (4, "")
    assert f"there is no topic {topic}" in ran.err


def test_refused_messages_are_counted(broker: testing.TestBroker, topic: str) -> None:
    with connect_sync(broker.address) as client:
        client.create_topic(topic, max_message_bytes=500)
    ran = icestream("produce", topic, "--broker", broker.address, "--output", "json", given=b"abc\n" + 501 * b"x")
    assert (ran.code, ran.document["stored"]) == (4, 1)
    assert "1 of 2 messages not stored: message of 501 bytes" in ran.err


def test_without_a_broker_there_is_a_hint() -> None:
    with socket.socket() as unused:  # bound, and not listening: connections are refused
        unused.bind(("127.0.0.1", 0))
        ran = icestream("produce", TOPIC, "--broker", f"127.0.0.1:{unused.getsockname()[1]}", given=b"x\n")
    assert (ran.code, ran.out) == (11, "")
    assert "start a broker with `icestream serve`" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("no-slash",), 4),
        ((TOPIC, "--header", "nothing"), 4),
        ((TOPIC, "--file", "nowhere/at/all"), 4),
        ((TOPIC, "--broker", "::::"), 4),
        ((TOPIC, "--shards", "0"), 2),
        ((), 2),
    ],
)
def test_wrong_usage(broker: testing.TestBroker, arguments: tuple[str, ...], code: int) -> None:
    where = () if "--broker" in arguments else ("--broker", broker.address)
    ran = icestream("produce", *arguments, *where, given=b"x\n")
    assert (ran.code, ran.out) == (code, "")
    assert "Traceback" not in ran.err


def test_an_interrupted_run_reports_what_is_stored(broker: testing.TestBroker, topic: str) -> None:
    with icestream_process("produce", topic, "--broker", broker.address) as process:
        assert process.stdin is not None
        process.stdin.write("one\ntwo\n")
        process.stdin.flush()
        assert len(stored(broker.address, _made(broker, topic), 2)) == 2
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_SECONDS)
        assert (process.returncode, out) == (130, "2 messages stored at offsets 0..1\n")


def _made(broker: testing.TestBroker, topic: str) -> str:
    """The topic, when the child has made it."""
    with connect_sync(broker.address) as client:
        while topic not in client.list_topics():
            pass
    return topic


def test_an_oversized_line_is_refused_before_it_is_read() -> None:
    splitter = LineSplitter(as_json=False)
    chunk = b"x" * limits.MIB
    for _ in range(limits.MESSAGE_BYTES_MAX // limits.MIB):
        assert list(splitter.feed(chunk)) == []
    with pytest.raises(errors.MessageTooLarge):
        list(splitter.feed(b"x"))


@pytest.mark.parametrize("cuts", [1, 2, 3, 100])
def test_lines_are_independent_of_chunk_boundaries(cuts: int) -> None:
    text = b"a\n\nbcd\n" * 7 + b"end"
    splitter = LineSplitter(as_json=False)
    lines = [line for at in range(0, len(text), cuts) for line in splitter.feed(text[at : at + cuts])]
    assert [*lines, *splitter.end()] == text.split(b"\n")


def test_an_empty_json_line_is_ignored() -> None:
    assert parse_json_line(b"  \r") is None
