"""Real nodes of one cluster, as `icestream serve --raft-port` starts them: they form, agree, and outlive each other."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import socket
import ssl
import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import icestream
from icestream.wal.format import RECORDS_START
from tests.support.fork_server import fork_server
from tests.support.lake_run import until
from tests.support.serve_process import COMMAND, SMALL, ServeProcess
from tests.support.three_broker_processes import COUNT, ThreeBrokerProcesses

CALL_SECONDS = 60.0  # a machine under load takes its time to elect


def publish(address: str, topic: str, payload: bytes) -> int:
    with (
        icestream.connect_sync(address, wait=CALL_SECONDS, call_timeout=CALL_SECONDS) as client,
        client.producer(topic) as producer,
    ):
        return producer.send(payload).offset


def test_three_nodes_agree_and_outlive_the_loss_of_any_one(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        assert len({node["cluster"] for node in announcements}) == 1
        assert len({node["node"] for node in announcements}) == COUNT
        addresses = [node["address"] for node in announcements]
        topics = [f"/default/topic-{number}" for number in range(COUNT)]
        for address, topic in zip(addresses, topics, strict=True):
            assert publish(address, topic, b"first") == 0
        for number, topic in enumerate(topics):  # each through another node
            assert publish(addresses[number - 1], topic, b"second") == 1
        for lost in range(COUNT):
            nodes.kill(lost)
            left = [number for number in range(COUNT) if number != lost]
            for number in left:
                assert publish(addresses[number], topics[number], b"third") >= 2
            # a new topic is written to the metadata store: the remaining nodes agree on a leader
            assert publish(addresses[left[0]], f"/default/without-{lost}", b"new") == 0
            addresses[lost] = nodes.begin(lost).announcement()["address"]
            assert publish(addresses[left[1]], topics[lost], b"it is back") >= 2
        with icestream.connect_sync(addresses[0]) as client:
            assert client.list_topics() == sorted([*topics, *(f"/default/without-{lost}" for lost in range(COUNT))])
        stopped = [nodes.running[number].stop(signal.SIGTERM)[0] for number in range(COUNT)]
        assert stopped == [0] * COUNT


def http_get(url: str, path: str) -> tuple[int, str]:
    where = urlsplit(url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=CALL_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_node_without_a_majority_is_not_ready_until_the_majority_is_back(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        urls = [announced["http"] for announced in nodes.start_all()]
        until(lambda: all("icestream_raft_voters 3.0" in http_get(url, "/metrics")[1] for url in urls))
        assert [http_get(url, "/readyz")[0] for url in urls] == [200] * COUNT
        nodes.kill(0)
        nodes.kill(1)
        until(lambda: http_get(urls[2], "/readyz")[0] == 503)
        failed = [check for check in json.loads(http_get(urls[2], "/readyz")[1])["checks"] if not check["ok"]]
        assert [(check["name"], check["is_needed"]) for check in failed] == [("consensus", True)]
        assert "no leader" in failed[0]["reason"]
        assert "2 of 3 voting nodes must reach each other" in failed[0]["reason"]
        assert "icestream_ready 0.0" in http_get(urls[2], "/metrics")[1]
        nodes.begin(0).announcement()
        until(lambda: http_get(urls[2], "/readyz")[0] == 200)


def test_messages_are_consumed_through_any_node_by_the_command(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        addresses = [node["address"] for node in nodes.start_all()]
        assert publish(addresses[0], "/default/hello", b"hello") == 0
        for address in addresses:
            ran = subprocess.run(
                [*COMMAND, "consume", "/default/hello", "--broker", address],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (ran.returncode, ran.stdout) == (0, "0:0\t\thello\n"), ran.stderr


def test_a_formation_killed_repeatedly_ends_in_one_cluster(tmp_path: Path) -> None:
    chance = random.SystemRandom()
    with ThreeBrokerProcesses(tmp_path) as nodes:
        for _ in range(4):
            for number in range(COUNT):
                nodes.begin(number)
            for number in chance.sample(range(COUNT), COUNT):
                time.sleep(chance.uniform(0.0, 0.4))  # not to wait for anything: for another moment of the kill
                nodes.kill(number)
        announcements = nodes.start_all()
        assert len({node["cluster"] for node in announcements}) == 1
        assert publish(announcements[0]["address"], "/default/t", b"m") == 0


def cluster_json(nodes: ThreeBrokerProcesses, number: int, *words: str) -> Any:
    """The JSON output of `icestream cluster`, over the local socket of a node."""
    return json.loads(shown(nodes, number, *words, "--output", "json"))


def shown(nodes: ThreeBrokerProcesses, number: int, *words: str) -> str:
    (path,) = nodes.folder.glob(f"data/**/{nodes.ports[number]}/**/broker.sock")
    command = [*COMMAND, "cluster", *words, "--broker", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_commands_show_and_change_a_running_cluster(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        by_name = {node["name"]: node for node in cluster_json(nodes, 0, "status")["nodes"]}
        assert sorted(node["role"] for node in by_name.values()) == ["leader", "voter", "voter"]
        follower = next(name for name, node in by_name.items() if node["role"] != "leader")
        cluster_json(nodes, 1, "transfer", follower)
        again = {node["name"]: node["role"] for node in cluster_json(nodes, 2, "status")["nodes"]}
        assert [name for name, role in again.items() if role == "leader"] == [follower]
        verified = cluster_json(nodes, 2, "verify")
        assert verified["is_equal"]
        assert verified["index"] > 0
        assert all(node["sha256"] for node in verified["nodes"]), "each has a state that was compared"
        assert {node["node"]: node["name"] for node in verified["nodes"]} == {
            node["node"]: name for name, node in by_name.items()
        }
        cluster_json(nodes, 1, "snapshot")
        assert len(verified["nodes"]) == COUNT
        nodes.kill(2)
        gone = announcements[2]["node"]
        without = shown(nodes, 0, "verify").splitlines()
        assert without[0].split() == ["name", "node", "sha256"]
        assert ["node-3", gone, "unreachable"] in [line.split() for line in without]
        assert without[-1].endswith("; 1 node unreachable")
        cluster_json(nodes, 0, "remove", gone, "--yes")
        left = cluster_json(nodes, 1, "status")["nodes"]
        assert gone not in {node["node"] for node in left} | {node["name"] for node in left}
        assert publish(announcements[0]["address"], "/default/t", b"m") == 0


def test_nodes_with_certificates_form_a_cluster_and_one_without_is_refused(tmp_path: Path) -> None:
    created = subprocess.run(
        [*COMMAND, "cluster", "certificates", str(tmp_path / "made"), "--output", "json"],
        capture_output=True, text=True, timeout=CALL_SECONDS, check=True,
    )  # fmt: skip
    tls = [word for key, path in json.loads(created.stdout).items() for word in ("--set", f"{key}={path}")]
    with ThreeBrokerProcesses(tmp_path) as nodes:
        for number in range(COUNT):
            nodes.begin(number, *tls)
        announcements = [nodes.running[number].announcement() for number in range(COUNT)]
        assert len({node["cluster"] for node in announcements}) == 1
        assert publish(announcements[1]["address"], "/default/t", b"m") == 0
        with (
            socket.create_connection(("127.0.0.1", nodes.ports[0]), CALL_SECONDS) as stranger,
            ssl._create_unverified_context().wrap_socket(stranger) as wrapped,
            contextlib.suppress(ssl.SSLError),  # in TLS 1.3 the server's no comes behind the handshake
        ):
            assert wrapped.recv(1) == b"", "a peer without a certificate gets no answer"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_node_of_another_cluster_stops_with_the_reason(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        nodes.start_all()
        nodes.kill(0)
        shutil.rmtree(nodes.folder / "data" / str(nodes.ports[0]))
        alone = ("--raft-port", str(nodes.ports[0]), "--set", f"meta_store.seed_nodes=127.0.0.1:{nodes.ports[0]}")
        with ServeProcess(nodes.folder / "data", *alone, "--output", "json", is_fork=True) as other:
            assert other.announcement()["cluster"]
            other.stop(signal.SIGTERM)
        code, _, errors = nodes.begin(0).end()
        assert code == 3
        assert "different clusters" in errors or "is a member of cluster" in errors


def test_a_node_with_a_damaged_metadata_log_stops_with_the_reason(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        publish(announcements[1]["address"], "/default/t", b"m")
        nodes.kill(0)
        folder = nodes.folder / "data" / str(nodes.ports[0]) / "raft"
        (log,) = [path for path in folder.iterdir() if path.name.startswith("log-")][:1]
        content = bytearray(log.read_bytes())
        for place in range(RECORDS_START + 40, RECORDS_START + 60):  # in the first record, and others follow it
            content[place] ^= 0xFF
        log.write_bytes(content)
        code, _, errors = nodes.begin(0).end()
        assert code == 9, errors
        assert publish(announcements[1]["address"], "/default/t", b"the others go on") == 1


def test_several_nodes_without_the_native_part_are_refused_with_a_hint(tmp_path: Path) -> None:
    seeds = ("--set", "meta_store.seed_nodes=127.0.0.1:7650,127.0.0.1:7651,127.0.0.1:7652", "--raft-port", "7650")
    arguments = ("serve", "--set", f"data_dir={tmp_path / 'data'}", *SMALL, *seeds)
    process = fork_server(native=False).start("icestream.cli.main:main", arguments, tmp_path)
    _, errors = process.communicate()
    assert process.wait() == 3
    assert "make native" in errors


def test_a_node_waiting_for_other_nodes_can_be_stopped(tmp_path: Path) -> None:
    with ThreeBrokerProcesses(tmp_path) as nodes:
        waiting = nodes.begin(0)
        raft = nodes.folder / "data" / str(nodes.ports[0]) / "raft"
        deadline = time.monotonic() + CALL_SECONDS
        while not raft.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        code, printed = waiting.stop(signal.SIGTERM)
        assert (code, printed) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--raft-port", "7650"), "their ports: there are none"),
        (("--set", "meta_store.seed_nodes=0.0.0.0:7650,0.0.0.0:7651"), "several seed nodes are on one host"),
        (("--set", "meta_store.seed_nodes=a:7651"), "no seed node has the port 7650"),
        (("--join", "nonsense"), "not HOST:PORT"),
    ],
)
def test_contradictory_cluster_settings_are_refused(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    with ServeProcess(tmp_path / "data", *arguments, is_fork=True) as process:
        code, _, errors = process.end()
        assert code == 3
        assert says in errors


def copy_of(nodes: ThreeBrokerProcesses, number: int, to: Path) -> Path:
    """The metadata log of a node that does not run."""
    folder = nodes.folder / "data" / str(nodes.ports[number]) / "raft"
    shutil.copytree(folder, to)
    return folder


def test_a_restored_raft_directory_is_refused_and_the_node_rejoins_with_its_topics(tmp_path: Path) -> None:
    """Item 22: the hint was to bring it back, and with a second fault acked metadata was gone."""
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        assert publish(announcements[0]["address"], "/default/kept", b"first") == 0
        nodes.running.pop(0).stop(signal.SIGTERM)
        folder = copy_of(nodes, 0, tmp_path / "backup")
        again = nodes.begin(0).announcement()
        assert publish(again["address"], "/default/later", b"first") == 0
        nodes.kill(0)
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "backup", folder)
        code, _, errors = nodes.begin(0).end()
        assert code == 9, errors
        assert "brought back from a backup" in errors
        assert "icestream cluster rejoin" in errors
        # with its mark brought back too, the others know better
        folder.with_name("raft.mark").unlink()
        code, _, errors = nodes.begin(0).end()
        assert code == 9, errors
        assert "knows that this node confirmed" in errors
        nodes.running.pop(0)

        ran = subprocess.run(
            [*COMMAND, "cluster", "rejoin", "--dir", str(folder), "--yes", "--output", "json"],
            capture_output=True, text=True, timeout=CALL_SECONDS, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["node"] == announcements[0]["node"]
        new = nodes.begin(0).announcement()
        assert new["cluster"] == announcements[0]["cluster"]
        assert new["node"] != announcements[0]["node"]
        assert publish(new["address"], "/default/kept", b"second") == 1
        assert publish(announcements[1]["address"], "/default/later", b"through another node") == 1
        status = cluster_json(nodes, 1, "status")["nodes"]
        assert {node["node"] for node in status} == {new["node"], announcements[1]["node"], announcements[2]["node"]}


def test_a_node_that_rejoins_without_its_message_log_reports_it(tmp_path: Path) -> None:
    """Items 5 and 22 together: the topics came with the node, and their messages did not."""
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        assert publish(announcements[0]["address"], "/default/kept", b"first") == 0
        nodes.kill(0)
        data = [nodes.folder / "data" / str(port) for port in nodes.ports]
        log = data[0] / "wal"
        log.rename(tmp_path / "lost")
        rejoin = [*COMMAND, "cluster", "rejoin", "--dir", str(data[0] / "raft"), "--yes"]
        subprocess.run(rejoin, capture_output=True, timeout=CALL_SECONDS, check=True)
        code, _, errors = nodes.begin(0).end()
        assert code == 9, errors
        assert "there is no log in" in errors
        shutil.rmtree(log)
        shutil.copytree(data[1] / "wal", log)  # the disk of another node is mounted in its place
        code, _, errors = nodes.begin(0).end()
        assert code == 3, errors
        assert "is not the log of this node" in errors
        assert "of node node-2" in errors
        shutil.rmtree(log)
        assert nodes.begin(0).end()[0] == 9
        nodes.running.pop(0)
        repair = [*COMMAND, "wal", "repair", str(log), "--accept-loss"]
        subprocess.run(repair, capture_output=True, timeout=CALL_SECONDS, check=True)
        new = nodes.begin(0).announcement()
        assert publish(new["address"], "/default/kept", b"behind the gap") >= 2**40


def ran_topic(nodes: ThreeBrokerProcesses, number: int, *words: str) -> Any:
    """The JSON output of `icestream topic`, over the local socket of a node."""
    path = nodes.folder / "data" / str(nodes.ports[number]) / "broker.sock"
    command = [*COMMAND, "topic", *words, "--yes", "--broker", str(path), "--output", "json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_topics_of_a_removed_node_are_deleted_and_taken_over(tmp_path: Path) -> None:
    """Item 21: nothing could be done with them any more."""
    with ThreeBrokerProcesses(tmp_path) as nodes:
        announcements = nodes.start_all()
        for topic in ("/default/taken", "/default/deleted"):
            assert publish(announcements[0]["address"], topic, b"only in the log of node-1") == 0
        nodes.kill(0)
        cluster_json(nodes, 1, "remove", "node-1", "--yes")
        assert ran_topic(nodes, 1, "delete", "/default/deleted")["deleted"] == "/default/deleted"
        takeover = ran_topic(nodes, 1, "takeover", "/default/taken")
        assert takeover["former"] == "node-1"
        (shard,) = takeover["shards"]
        assert publish(announcements[1]["address"], "/default/taken", b"after it") == shard["gap_end"]
        nodes.kill(1)  # the gap and what came behind it are in the log
        again = nodes.begin(1).announcement()
        assert publish(again["address"], "/default/taken", b"after a start") > shard["gap_end"]
        ran = subprocess.run(
            [*COMMAND, "consume", "/default/taken", "--broker", again["address"]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert [line.split("\t")[-1] for line in ran.stdout.splitlines()] == ["after it", "after a start"], ran.stderr
        with icestream.connect_sync(announcements[2]["address"]) as client:
            assert client.list_topics() == ["/default/taken"]
