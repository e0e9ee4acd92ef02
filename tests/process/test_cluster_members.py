"""Nodes come and go by the commands of docs/cluster.md: they join, are promoted, replaced, invited, and left alone."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import icestream
from tests.support.fork_server import ROOT, fork_server
from tests.support.free_ports import free_ports
from tests.support.serve_process import COMMAND, READY, SMALL, ServeProcess
from tests.support.three_broker_processes import COUNT, ThreeBrokerProcesses

CALL_SECONDS = 60.0  # a machine under load takes its time to elect
LOOK_SECONDS = 0.05
KEPT = "/default/kept"


def run(folder: Path, *words: str) -> str:
    """The JSON output of `icestream cluster`."""
    ran = fork_server().start("icestream.cli.main:main", ("cluster", *words, "--output", "json"), folder)
    printed, errors = ran.communicate(CALL_SECONDS)
    assert ran.returncode == 0, (words, errors)
    return printed


class ClusterMembers(ThreeBrokerProcesses):
    """Three nodes and those that come later, by their names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folders = {f"node-{number + 1}": folder / "data" / str(port) for number, port in enumerate(self.ports)}

    def join(self, name: str, folder: str, port: int) -> Any:
        """Starts a node with an empty directory, as on another machine; returns its announcement."""
        return self.begin_join(name, folder, port, *self.shared).announcement()

    @property
    def shared(self) -> tuple[str, str]:
        """The warehouse of the three."""
        return ("--set", f"storage.iceberg_config.warehouse=file:{self.folder / 'data' / 'warehouse'}")

    def begin_join(self, name: str, folder: str, port: int, *arguments: str) -> ServeProcess:
        self.folders[name] = self.folder / folder
        options = ("--join", f"127.0.0.1:{self.ports[0]}", "--set", f"node.name={name}", "--set", f"ports.raft={port}")
        return self._begun(ServeProcess(self.folders[name], *options, "--output", "json", *arguments, is_fork=True))

    def wait_for_another(self, name: str) -> int:
        """A node whose list names one that is not there; its Raft port, when it listens."""
        port, unused_port = free_ports(2)
        self.folders[name] = self.folder / name / str(port)
        seeds = ("--set", f"meta_store.seed_nodes=127.0.0.1:{port},127.0.0.1:{unused_port}", "--raft-port", str(port))
        named = ("--set", f"node.name={name}", "--output", "json", *self.shared)
        self._begun(ServeProcess(self.folder / name, *seeds, *named, is_fork=True))
        until(lambda: can_connect(port), True)
        return port

    def _begun(self, process: ServeProcess) -> ServeProcess:
        self.running[max(self.running, default=COUNT) + 1] = process
        return process

    def ask(self, name: str, *words: str) -> Any:
        """The answer of the node with that name, over its local socket."""
        return json.loads(run(self.folder, *words, "--broker", str(self.folders[name] / "broker.sock")))

    def roles(self, through: str) -> dict[str, str]:
        """The role of each node by its name; the leader counts as a voter."""
        members = self.ask(through, "status")["nodes"]
        return {member["name"]: "voter" if member["role"] == "leader" else member["role"] for member in members}

    def until_roles(self, through: str, **roles: str) -> None:
        until(lambda: self.roles(through), {name.replace("_", "-"): role for name, role in roles.items()})


def until(look: Callable[[], object], expected: object) -> None:
    deadline = time.monotonic() + CALL_SECONDS
    while (value := look()) != expected:
        assert time.monotonic() < deadline, (value, expected)
        time.sleep(LOOK_SECONDS)


def can_connect(port: int) -> bool:
    with contextlib.closing(socket.socket()) as dialled:
        return dialled.connect_ex(("127.0.0.1", port)) == 0


def publish(address: str, topic: str) -> int:
    with (
        icestream.connect_sync(address, wait=CALL_SECONDS, call_timeout=CALL_SECONDS) as client,
        client.producer(topic) as producer,
    ):
        return producer.send(b"message").offset


def topics(address: str) -> list[str]:
    with icestream.connect_sync(address, wait=CALL_SECONDS, call_timeout=CALL_SECONDS) as client:
        return client.list_topics()


def test_nodes_join_are_promoted_replaced_and_invited_and_one_continues_alone(tmp_path: Path) -> None:
    with ClusterMembers(tmp_path) as nodes:
        first = nodes.start_all()[0]
        assert publish(first["address"], KEPT) == 0

        # one that does not see their tables stays outside
        code, _, printed = nodes.begin_join("node-4", "fourth", *free_ports(1)).end()
        assert code == 3, printed
        assert "node-4 does not see the warehouse of this cluster" in printed
        assert "under the same path, or use an object store" in printed
        nodes.running.pop(max(nodes.running))
        assert {*nodes.roles("node-1")} == {"node-1", "node-2", "node-3"}

        # one more: it has everything and counts in no majority
        fourth = nodes.join("node-4", "fourth", *free_ports(1))
        assert fourth["cluster"] == first["cluster"]
        nodes.until_roles("node-4", node_1="voter", node_2="voter", node_3="voter", node_4="learner")
        assert topics(fourth["address"]) == [KEPT]
        assert publish(fourth["address"], KEPT) == 1
        assert publish(fourth["address"], "/default/of-a-learner") == 0

        # the leader is lost: when it is removed the learner takes its place by itself
        nodes.ask("node-1", "transfer", "node-2")
        nodes.kill(1)
        assert nodes.ask("node-4", "remove", "node-2", "--yes") == {"removed": "node-2"}
        nodes.until_roles("node-3", node_1="voter", node_3="voter", node_4="voter")

        # its replacement is another node, of the same name and at the same address
        assert nodes.join("node-2", "replacement", nodes.ports[1])["cluster"] == first["cluster"]
        nodes.until_roles("node-1", node_1="voter", node_2="learner", node_3="voter", node_4="voter")
        assert nodes.ask("node-2", "promote", "node-2") == {"promoted": "node-2"}  # three vote already
        nodes.until_roles("node-1", node_1="voter", node_2="voter", node_3="voter", node_4="voter")

        # one that waits for nodes which never come is invited, and is the fifth that votes
        port = nodes.wait_for_another("node-5")
        added = nodes.ask("node-3", "add", f"127.0.0.1:{port}")
        voters = {f"node_{number}": "voter" for number in range(1, 6)}
        nodes.until_roles("node-1", **voters)
        announcement = nodes.running[max(nodes.running)].announcement()
        assert (announcement["node"], announcement["cluster"]) == (added["node"], first["cluster"])
        all_nodes = {member["node"] for member in nodes.ask("node-1", "status")["nodes"]}

        # all are lost but the disk of one
        for number in tuple(nodes.running):
            nodes.kill(number)
        store = ("--dir", str(nodes.folders["node-1"] / "raft"))
        forced = json.loads(run(tmp_path, "force-new-cluster", *store, "--yes"))
        assert forced["node"] == first["node"]
        assert forced["cluster"] != first["cluster"]
        assert all_nodes - {first["node"]} <= set(forced["removed"].split(", "))
        alone = nodes.begin(0, "--set", f"meta_store.seed_nodes=127.0.0.1:{nodes.ports[0]}").announcement()
        assert (alone["node"], alone["cluster"]) == (forced["node"], forced["cluster"])
        assert topics(alone["address"]) == [KEPT, "/default/of-a-learner"]
        assert publish(alone["address"], KEPT) == 2
        assert publish(alone["address"], "/default/new") == 0
        assert nodes.roles("node-1") == {"node-1": "voter"}
        # others join it with empty directories
        assert nodes.join("node-2", "after", nodes.ports[1])["cluster"] == forced["cluster"]
        nodes.until_roles("node-2", node_1="voter", node_2="learner")
        nodes.kill(0)

        lines = [json.loads(line) for line in run(tmp_path, "export", *store).splitlines()]
        assert lines[0]["identity"]["cluster"] == forced["cluster"]
        log_lines = [
            json.dumps(line) for line in lines if "key" in line or "command" in line
        ]  # in the snapshot or behind it
        for word in (KEPT, "/default/of-a-learner", "/default/new", f"/cluster/nodes/{first['node']}"):
            assert any(word in line for line in log_lines), word


# --- make cluster -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def script(folder: Path, ports: list[int]) -> Iterator[subprocess.Popen[str]]:
    """scripts/cluster.sh as a terminal starts it, with a group of its own that Ctrl-C is for."""
    program = folder / "icestream"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    variables = {
        "ICESTREAM": str(program),
        "CLUSTER_DIR": str(folder / "data"),
        "RAFT_PORTS": " ".join(map(str, ports)),
    }
    process = subprocess.Popen(
        # a shell can trap no signal that was ignored when it began, as with tests in the background
        ["env", "--default-signal=INT", str(ROOT / "scripts" / "cluster.sh"), *SMALL],
        env={**{name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}, **variables},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in [*children(process.pid), process.pid] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=CALL_SECONDS)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_three_nodes_of_one_terminal_start_and_end_together(tmp_path: Path) -> None:
    ports = free_ports(COUNT)
    with script(tmp_path, ports) as process:
        assert process.stdout is not None
        waiting = {f"{port}  {READY}" for port in ports}
        lines: list[str] = []
        while waiting:
            line = process.stdout.readline()
            assert line, lines
            lines.append(line)
            waiting.discard(line.rstrip("\n"))
        started = children(process.pid)
        assert len(started) == 2 * COUNT, "each node, and what puts its port before its words"
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=CALL_SECONDS)
        assert process.returncode == 0, rest
        assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
        assert [port for port in ports if can_connect(port)] == []


# --- a node that was removed ------------------------------------------------------------------------------------------


def check_it_says_that_it_was_removed(process: ServeProcess, node: str) -> None:
    code, _, errors = process.end()
    assert code == 3, errors
    assert f"node {node} was removed from cluster" in errors
    assert "empty data_dir" in errors
    assert "icestream serve --join" in errors
    assert "Traceback" not in errors


def test_a_removed_node_that_returns_stops_without_harm(tmp_path: Path) -> None:
    with ClusterMembers(tmp_path) as nodes:
        announcements = nodes.start_all()
        (port,) = free_ports(1)
        fourth = nodes.join("node-4", "fourth", port)
        for name, number in (("node-3", 2), ("node-4", max(nodes.running))):
            nodes.kill(number)
            nodes.ask("node-1", "remove", name, "--yes")
        before = nodes.ask("node-1", "status")

        # its list names the others, or only its log knows them, or it is told to join with what it has
        check_it_says_that_it_was_removed(nodes.begin(2), announcements[2]["node"])
        elsewhere = nodes.begin(2, "--set", "node.name=another")
        check_it_says_that_it_was_removed(elsewhere, announcements[2]["node"])
        alone = ("--set", "node.name=node-4", "--set", f"ports.raft={port}", "--output", "json")
        for more in ((), ("--join", f"127.0.0.1:{nodes.ports[0]}")):
            back = ServeProcess(nodes.folders["node-4"], *alone, *more, is_fork=True)
            check_it_says_that_it_was_removed(nodes._begun(back), fourth["node"])

        after = nodes.ask("node-2", "status")
        assert (after["term"], after["leader"]) == (before["term"], before["leader"]), "no election was started"
        assert nodes.roles("node-1") == {"node-1": "voter", "node-2": "voter"}
        assert publish(announcements[0]["address"], KEPT) == 0


def test_a_running_node_that_is_removed_stops_with_the_reason(tmp_path: Path) -> None:
    with ClusterMembers(tmp_path) as nodes:
        announcements = nodes.start_all()
        fourth = nodes.join("node-4", "fourth", *free_ports(1))
        nodes.until_roles("node-4", node_1="voter", node_2="voter", node_3="voter", node_4="learner")
        for name, number, node in (("node-4", max(nodes.running), fourth), ("node-3", 2, announcements[2])):
            assert nodes.ask(name, "remove", name, "--yes") == {"removed": name}, "through itself, and answered"
            check_it_says_that_it_was_removed(nodes.running[number], node["node"])
        assert publish(announcements[0]["address"], KEPT) == 0
