"""Backups of a whole broker: what the rows of `scenarios/backup.py` with processes are made of."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icestream
from bench import broker, generator, node, process
from bench.generator import Load
from bench.harness import RunFailed
from bench.node import Node

TOPIC = "files"
MESSAGE_BYTES = 66_000  # more than target_file_bytes may be at least: each message becomes a file
TARGET_FILE_BYTES = 65_536
PAUSE_SECONDS = 0.01  # of the producer whose loss is measured


@contextmanager
def with_files(path: Path, files: int) -> Iterator[Node]:
    """A broker and its pipeline, with a topic whose table has so many files of random bytes."""
    with node.running(path) as running:
        policies = [f"target_file_bytes={TARGET_FILE_BYTES}", "compaction=off"]
        words = [word for policy in policies for word in ("--policy", policy)]
        running.icestream("topic", "create", f"/default/{TOPIC}", *words)
        asyncio.run(_fill(running.target.address, files))
        running.commit_now()
        summary = running.table(TOPIC)["snapshots"][-1]["summary"]
        if int(summary["total-data-files"]) < files:
            raise RunFailed(f"the table has {summary['total-data-files']} files, not {files}")
        yield running


async def _fill(address: str, messages: int) -> None:
    chance = random.Random(1)
    async with icestream.connect(address) as client, client.producer(f"/default/{TOPIC}") as producer:
        sent: list[Any] = []
        for _ in range(messages):
            await producer.ready()
            sent.append(producer.send(chance.randbytes(MESSAGE_BYTES)))
            if len(sent) >= 100:
                await asyncio.gather(*sent)
                sent.clear()
        await asyncio.gather(*sent)


@dataclass(frozen=True)
class Made:
    """A backup; `copy_seconds`: from its cut to its end."""

    seconds: float
    copy_seconds: float
    files: int
    bytes: int


def back_up(running: Node, target: Path, *words: str) -> Made:
    before = time.perf_counter()
    root = running.icestream("backup", "create", "--to", str(target), *words)
    return Made(time.perf_counter() - before, (root["ended_ms"] - root["cut_ms"]) / 1e3, root["files"], root["bytes"])


def publishes(running: Node, seconds: float) -> Load:
    """One producer that awaits each ack of ten messages of 100 B."""
    return generator.publish("native", running.target, topic="load", batch=10, seconds=seconds)


def publishes_beside(running: Node, target: Path, rate: float, seconds: float) -> Load:
    """The same while a backup copies at this rate, in bytes per second."""
    words = [str(broker.PROGRAM), "backup", "create", "--to", str(target), "--rate", str(int(rate))]
    words += ["--broker", str(running.data_dir / "broker.sock"), "--output", "json"]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while sum(1 for _ in target.glob("objects/*/*.parquet")) < 20:
            if child.poll() is not None or time.monotonic() > until:
                raise RunFailed("the backup copied nothing")
            time.sleep(0.02)
        load = publishes(running, seconds)
        if child.poll() is not None:
            raise RunFailed(f"the backup ended before {seconds:g} s of publishes")
        return load
    finally:
        child.kill()
        child.wait()


def recover(path: Path, target: Path) -> tuple[float, float]:
    """Seconds from the start of an empty broker until its first consumer has a message of the restored topic; and those
    of the restore alone."""
    before = time.perf_counter()
    with node.running(path, has_pipeline=False) as running:
        begun = time.perf_counter()
        running.icestream("backup", "restore", "latest", "--to", str(target), "--everything")
        restored = time.perf_counter() - begun
        asyncio.run(_first(running.target.address, TOPIC))
        return time.perf_counter() - before, restored


async def _first(address: str, topic: str) -> bytes:
    async with (
        icestream.connect(address, wait=30) as client,
        client.subscribe(f"/default/{topic}", "first", type="exclusive", start="earliest") as messages,
    ):
        async for batch in messages.batches(max_messages=10):
            return bytes(batch.data.column("payload")[0].as_py())
    raise RunFailed("no message came")


def lost_seconds(path: Path, seconds: float) -> float:
    """Kills a broker with an archive while it is published to, restores the archive into another one, and returns how
    much older the newest restored message is than the last acked one."""
    target = path / "backups"
    settings = {"backup.target": target, "backup.archive.enable": "true"}
    (path / "first").mkdir()
    (path / "second").mkdir()
    with node.running(path / "first", settings=settings) as running:
        broker.create_topic(running.target, TOPIC)
        back_up(running, target)
        acked_ns = asyncio.run(_publish_times(running, seconds))
    with node.running(path / "second", has_pipeline=False) as running:
        running.icestream("backup", "restore", "latest", "--to", str(target), "--to-time", "end", "--everything")
        return (acked_ns - asyncio.run(_newest(running.target.address))) / 1e9


async def _publish_times(running: Node, seconds: float) -> int:
    """Publishes the time, again and again, kills the broker with all its processes, and returns the last acked time."""
    until, acked_ns = time.monotonic() + seconds, 0
    async with icestream.connect(running.target.address) as client, client.producer(f"/default/{TOPIC}") as producer:
        while time.monotonic() < until:
            now_ns = time.time_ns()
            await producer.send(now_ns.to_bytes(8, "big"))
            acked_ns = now_ns
            await asyncio.sleep(PAUSE_SECONDS)
        for pid in reversed(process.family(running.target.pid)):
            os.kill(pid, signal.SIGKILL)
    return acked_ns


async def _newest(address: str) -> int:
    """The last time in the restored topic: its messages end with the gap that a restore leaves."""
    newest = 0
    async with (
        icestream.connect(address, wait=30) as client,
        client.subscribe(f"/default/{TOPIC}", "all", type="exclusive", start="earliest") as messages,
    ):
        batches = messages.batches(max_messages=100_000)
        while True:
            try:
                batch = await asyncio.wait_for(anext(batches), 5.0)
            except TimeoutError:
                return newest
            newest = int.from_bytes(batch.data.column("payload")[-1].as_py(), "big")
            batch.ack()
