"""The real Danube, where somebody has built it: a cluster of one node with its settings as they come, in a directory of
ours. Its single-node mode keeps a core busy while idle, so the cluster is the fairer one. Acks come from memory.

    cargo build --release -p danube-broker      in a checkout of Danube
    DANUBE_BROKER=…/target/release/danube-broker make bench ARGS="--only danube"
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.generator import Target
from bench.harness import MissingPeer, RunFailed
from bench.process import HOST, free_port

START_SECONDS = 60.0
SETTINGS = """
cluster_name: BENCH
broker:
  host: {host}
  ports: {{client: {client}, admin: {admin}, raft: {raft}, prometheus: {prometheus}}}
meta_store:
  data_dir: {path}/raft
bootstrap_namespaces: [default]
auto_create_topics: true
auth:
  mode: none
storage:
  mode: local
  local_wal_root: {path}/wal
  metadata_prefix: /danube
policies:
  max_producers_per_topic: 0
  max_subscriptions_per_topic: 0
  max_consumers_per_topic: 0
  max_consumers_per_subscription: 0
  max_publish_rate: 0
  max_subscription_dispatch_rate: 0
  max_message_size: 10485760
"""


def program() -> str:
    """Raises MissingPeer when there is none."""
    found = shutil.which(os.environ.get("DANUBE_BROKER", "danube-broker"))
    if found is None:
        raise MissingPeer("no danube-broker: build it and name it in DANUBE_BROKER")
    return found


def is_here() -> bool:
    try:
        program()
    except MissingPeer:
        return False
    return True


@contextmanager
def running(path: Path) -> Iterator[Target]:
    ports = {name: free_port() for name in ("client", "admin", "raft", "prometheus")}
    place = path / "danube"
    place.mkdir()
    (place / "broker.yml").write_text(SETTINGS.format(host=HOST, path=place, **ports))
    words = [program(), "--mode", "cluster", "--config-file", str(place / "broker.yml")]
    environment = {**os.environ, "RUST_LOG": "error"}
    with (place / "broker.log").open("ab") as log:
        child = subprocess.Popen(words, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_until_it_listens(child, ports["client"], place / "broker.log")
        yield Target(f"{HOST}:{ports['client']}", child.pid, "danube-broker")
    finally:
        child.kill()
        child.wait()


def _wait_until_it_listens(child: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and child.poll() is None:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RunFailed(f"danube-broker did not start: {log.read_text(errors='replace')[-2000:]}")
