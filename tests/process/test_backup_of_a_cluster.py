"""Backups of a cluster of three broker processes of which one was killed: what is in no table yet of the dead node is
named, exit code 14; with the node back, each node's backup has its own messages. Both are restored."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import icestream
from icestream.cli.backup import EXIT_INCOMPLETE
from tests.support.lake_run import LakeRun, until
from tests.support.serve_process import COMMAND
from tests.support.three_broker_processes import COUNT, ThreeBrokerProcesses

CALL_SECONDS = 60.0
WITH_LAKE = ("--set", "lake.managed=true")
PAYLOADS = [b"message %d" % number for number in range(5)]


def backup(socket: Path, target: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the output of `icestream backup`, beside the broker of a socket."""
    command = [*COMMAND, "backup", *arguments, "--to", str(target), "--broker", str(socket), "--output", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    return ran.returncode, ran.stdout or ran.stderr


def created(socket: Path, target: Path, code: int, *arguments: str) -> Any:
    """The root of a backup whose command ends with this code. It is asked for again while the nodes that are left elect
    a leader, or while a lake process starts."""
    outputs: list[str] = []

    def create() -> bool:
        outcome, output = backup(socket, target, "create", *arguments)
        outputs.append(output)
        return outcome == code

    until(create, CALL_SECONDS, 1.0)
    return json.loads(outputs[-1])


def received(address: str, topic: str, count: int) -> list[bytes]:
    with (
        icestream.connect_sync(address, wait=CALL_SECONDS, call_timeout=CALL_SECONDS) as client,
        client.subscribe(topic, "s", start="earliest") as consumer,
    ):
        messages = [consumer.receive(60) for _ in range(count)]
    return [bytes(message.payload) for message in messages if message is not None]


@pytest.mark.timeout(300)
def test_a_backup_names_what_a_dead_node_has_and_has_it_when_the_node_is_back(tmp_path: Path) -> None:
    topics = [f"/default/of-{number}" for number in range(COUNT)]
    target = tmp_path / "backups"
    with ThreeBrokerProcesses(tmp_path) as nodes:
        for number in range(COUNT):
            nodes.begin(number, *WITH_LAKE)
        addresses = [nodes.running[number].announcement()["address"] for number in range(COUNT)]
        sockets = [nodes.folder / "data" / str(port) / "broker.sock" for port in nodes.ports]
        for address, topic in zip(addresses, topics, strict=True):
            with (
                icestream.connect_sync(address, wait=CALL_SECONDS, call_timeout=CALL_SECONDS) as client,
                client.producer(topic) as producer,
            ):
                producer.send_all(PAYLOADS)
        nodes.kill(2)
        root = created(sockets[0], target, EXIT_INCOMPLETE)
        ends = {topic["name"]: topic["shards"][0]["end"] for topic in root["topics"]}
        assert ends[topics[0]] == len(PAYLOADS)
        missing = {shard["topic"] for shard in root["incomplete"]}
        assert topics[2] in missing
        assert topics[0] not in missing
        # Back again: its own backup has what only its log has.
        nodes.begin(2, *WITH_LAKE).announcement()
        second = created(sockets[2], target, 0, "--topics", topics[2])
        assert second["incomplete"] == []
    with LakeRun(tmp_path / "empty") as empty:
        empty.until_api()
        address = re.search(r"native (127\.0\.0\.1:\d+)", empty.greeting)
        assert address is not None
        for backup_id, topic in ((root["id"], topics[0]), (second["id"], topics[2])):
            command = ("restore", backup_id, "--topics", topic)
            _, output = backup(tmp_path / "empty" / "broker.sock", target, *command)
            (restored,) = json.loads(output)["topics"]
            assert (restored["messages"], restored["problem"]) == (len(PAYLOADS), "")
            assert received(address[1], topic, len(PAYLOADS)) == PAYLOADS
