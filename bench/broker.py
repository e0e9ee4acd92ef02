"""Our side: `icestream serve` as a process of its own on loopback, the way a person starts it.

Ports are free ones, the data directory is that of the round. The quota is far away, because a log near it slows its
producers on purpose. The lake process, which has nothing to do here, is only started where it is measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import icestream
from bench import generator, process
from bench.generator import Target
from bench.harness import RunFailed, settle
from icestream import limits

PROGRAM = Path(sys.executable).with_name("icestream")
READY = "Stop with Ctrl-C."
WAL = "storage.iceberg_config.wal"
START_SECONDS = 60.0
ROWS = 1000
# In flight: less than the 64 batches and 8 MiB that the broker takes from one producer and connection.
FRAMES_IN_FLIGHT = 32


@contextmanager
def running(
    path: Path,
    mode: str,
    *,
    settings: Mapping[str, object] | None = None,
    has_lake: bool = False,
    stops: bool = False,
    prefix: Sequence[str] = (),
) -> Iterator[Target]:
    """`stops`: at the end it is stopped in order, for whoever starts it again; else it is killed. `prefix`: words of a
    program that runs the broker (instructions.py)."""
    chosen = {
        "data_dir": path / "icestream",
        "ports.native": 0,
        "ports.broker_http": 0,
        "ports.lake": 0,
        "ports.danube": 0,
        "ports.danube_admin": 0,
        "mqtt.enable": "false",
        "ports.mqtt": 0,
        "ports.mqtt_ws": 0,
        "lake.managed": str(has_lake).lower(),
        "pipeline.managed": "false",
        f"{WAL}.sync_mode": mode,
        f"{WAL}.quota": "200GiB",
        f"{WAL}.topic_quota": "200GiB",
        **(settings or {}),
    }
    words = [*prefix, str(PROGRAM), "serve"]
    for key, value in chosen.items():
        words += ["--set", f"{key}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
    with (path / "broker.log").open("ab") as log:
        child = subprocess.Popen(words, cwd=path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield Target(_address(child, path), child.pid, "icestream")
        if stops:
            child.send_signal(signal.SIGTERM)
            child.wait(START_SECONDS)
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def _address(child: subprocess.Popen[str], path: Path) -> str:
    assert child.stdout is not None
    address = ""
    for line in child.stdout:
        if line.startswith("Listening: native "):
            address = line.split()[-1]
        if line.rstrip() == READY:
            return address
    raise RunFailed(f"the broker did not start: {(path / 'broker.log').read_text()[-2000:]}")


def burst(target: Target, messages: float, **options: float | str) -> generator.Load:
    """Frames of 1,000 messages of 100 B, as fast as one connection brings them."""
    chosen: dict[str, float | str] = {"batch": ROWS, "in_flight": FRAMES_IN_FLIGHT, "messages": int(messages)}
    return generator.publish("native", target, **{**chosen, **options})


def warm(target: Target, path: Path) -> None:
    """The state that a log has after its first minute: it writes into a zeroed file, and a spare is ready."""
    wait_for_spare(path)
    burst(target, (limits.LOG_FILE_BYTES_DEFAULT + 4 * limits.MIB) // 100, topic="warm")
    wait_for_spare(path)
    settle(path)


def wait_for_spare(path: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while not any((path / "icestream" / "wal").glob("spare-*.wal")):
        if time.monotonic() > until:
            raise RunFailed("the log made no spare file")
        time.sleep(0.01)


def delete_topic(target: Target, topic: str) -> None:
    """Its files become spares."""
    with icestream.connect_sync(target.address) as client:
        client.delete_topic(f"/default/{topic}")


def create_topic(target: Target, topic: str) -> None:
    with icestream.connect_sync(target.address) as client:
        client.create_topic(f"/default/{topic}")


def wait_for_lake(target: Target) -> None:
    """Until the lake process has started and rests."""
    until = time.monotonic() + START_SECONDS
    while len(process.family(target.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    wait_until_quiet(target, 1.0)


def wait_until_quiet(target: Target, seconds: float) -> None:
    """Until it has used next to nothing, and written nothing, for so long."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        pids = process.family(target.pid)
        before = process.cpu_seconds(pids), process.written_bytes(pids)
        time.sleep(seconds)
        if process.written_bytes(pids) == before[1] and process.cpu_seconds(pids) - before[0] < 0.1 * seconds:
            return
    raise RunFailed(f"the broker did not rest for {seconds:g} s in {START_SECONDS:g} s")
