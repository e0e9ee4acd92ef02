"""Three nodes of etcd on loopback (Debian's etcd-server), heartbeats and elections as ours; h2load is their client.

h2load costs less than any client of gRPC and knows nothing of it: a call that is refused counts too. So the bytes of
the answers are looked at: a refusal has none.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import h2load
from bench.harness import MissingPeer, RunFailed
from bench.process import HOST, free_port

INSTALL = "apt-get install etcd-server"
HEARTBEAT_MS, ELECTION_MS = 50, 500
NODES = 3
KEY, VALUE = b"/bench/key", bytes(256)
ANSWER_BYTES_MIN = 10
READY_SECONDS = 30.0


def program() -> str:
    found = shutil.which("etcd")
    if found is None:
        raise MissingPeer(f"etcd is not installed: {INSTALL}")
    return found


def version() -> str:
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    return f"etcd {said.split()[2]}"


@contextmanager
def running(folder: Path, nodes: int = NODES) -> Iterator[list[str]]:
    """The client addresses, the leader's first."""
    with running_processes(folder, nodes) as (clients, _):
        yield clients


@contextmanager
def running_processes(folder: Path, nodes: int = NODES) -> Iterator[tuple[list[str], list[int]]]:
    """The same, and their processes."""
    name = program()
    clients, peers = [f"{HOST}:{free_port()}" for _ in range(nodes)], [f"{HOST}:{free_port()}" for _ in range(nodes)]
    together = ",".join(f"n{number}=http://{peer}" for number, peer in enumerate(peers))
    processes = []
    try:
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            words = [name, "--name", f"n{number}", "--data-dir", str(folder / f"etcd-{number}")]
            words += ["--listen-client-urls", f"http://{client}", "--advertise-client-urls", f"http://{client}"]
            words += ["--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}"]
            words += ["--initial-cluster", together, "--heartbeat-interval", str(HEARTBEAT_MS)]
            words += ["--election-timeout", str(ELECTION_MS), "--log-level", "error"]
            with (folder / f"etcd-{number}.log").open("w") as said:
                processes.append(subprocess.Popen(words, stdout=said, stderr=said))
        leader = _leader(clients)
        order = sorted(range(nodes), key=lambda number: clients[number] != leader)
        yield [clients[number] for number in order], [processes[number].pid for number in order]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _leader(clients: list[str]) -> str:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        for client in clients:
            found = status(client)
            if found.get("leader") and found["leader"] == found["header"]["member_id"]:
                return client
        time.sleep(0.05)
    raise RunFailed("etcd has no leader")


def status(client: str) -> dict[str, Any]:
    """Empty when it does not answer."""
    request = urllib.request.Request(f"http://{client}/v3/maintenance/status", b"{}")
    try:
        with urllib.request.urlopen(request, timeout=1) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found


def _field(number: int, data: bytes) -> bytes:
    size, prefix = len(data), b""
    while size > 127:
        prefix += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + prefix + bytes([size]) + data


PUT = ("/etcdserverpb.KV/Put", _field(1, KEY) + _field(2, VALUE))
RANGE = ("/etcdserverpb.KV/Range", _field(1, KEY))


def load(client: str, folder: Path, kind: str, connections: int, in_flight: int, seconds: float) -> float:
    """Answers a second."""
    path, message = PUT if kind == "put" else RANGE
    body = folder / "body.bin"
    body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
    words = [h2load.program(), "-D", str(max(int(seconds), 1)), "-c", str(connections), "-m", str(in_flight)]
    words += ["-t", "1", "-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run([*words, f"http://{client}{path}"], capture_output=True, text=True, check=False)
    succeeded, data = h2load.SUCCEEDED.search(done.stdout), h2load.DATA.search(done.stdout)
    if done.returncode or succeeded is None or data is None or not int(succeeded[1]):
        raise RunFailed(f"h2load: {(done.stdout + done.stderr).strip()[-500:]}")
    if int(data[1]) < int(succeeded[1]) * ANSWER_BYTES_MIN:
        raise RunFailed(f"etcd refused calls: {done.stdout.strip()[-500:]}")
    took = h2load.SECONDS.search(done.stdout)
    assert took is not None
    return int(succeeded[1]) / (float(took[1]) * h2load.UNITS[took[2]])
