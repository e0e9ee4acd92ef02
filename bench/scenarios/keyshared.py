"""Key-shared and shared subscriptions that catch up from the log, against an exclusive one over the same backlog.

The memory tail of the broker is off, so that all of it comes from the log. Consumers are processes of their own
(bench/key_client.py) with the Python client, which take message by message and ack each; the keys of messages are
random. The clock runs from the moment at which the consumers are told to subscribe to the last message.

    1,000 keys     four consumers, one message of a key at a time, as by default; in a row of its own 64 of a key
    one key        four consumers, of which one has the key and takes 1,000 messages of it at a time
    redeliveries   a shared subscription with four consumers in which every tenth message fails once
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import icestream
from bench import broker
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Target
from bench.harness import Bench, RunFailed

NAME = "keyshared"
GOAL = "key-shared catch-up ≥ 0.5x exclusive with 1,000 keys and 4 consumers; ≥ 50,000/s with one key"
CONSUMERS = 4
PAYLOAD = bytes(100)
GROUP = 1_000
SIDES = ("1,000 keys", "1,000 keys, 64 of each", "one key", "redeliveries")


async def fill(target: Target, topic: str, messages: int, keys: int) -> None:
    chance = random.Random(keys)
    async with icestream.connect(target.address, wait=30) as client, client.producer(topic) as producer:
        for _ in range(messages // GROUP):
            await producer.ready()
            sent = [producer.send(PAYLOAD, key=b"key-%d" % chance.randrange(keys)) for _ in range(GROUP)]
            await sent[-1]


def consume(
    target: Target, topic: str, name: str, kind: str, consumers: int, messages: int, per_key: int, fail_every: int
) -> float:
    """Messages per second of all consumers together."""
    words = [sys.executable, "-m", "bench.key_client", target.address, topic, name, kind, str(per_key), str(fail_every)]
    children = [
        subprocess.Popen(words, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(consumers)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    found = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate()
        if child.returncode:
            raise RunFailed(f"a consumer of {name} failed")
        found.append(json.loads(out.splitlines()[-1]))
    total = sum(run["messages"] for run in found)
    if total < messages:
        raise RunFailed(f"{total} of {messages} messages came to the consumers of {name}")
    return messages / (max(run["last"] for run in found) - min(run["first"] for run in found))


def sides(path: Path, messages: int) -> dict[str, float]:
    with broker.running(path, "none", settings={"broker.tail_enabled": "false"}) as target:
        many, single = "/default/many-keys", "/default/one-key"
        asyncio.run(fill(target, many, messages, 1_000))
        asyncio.run(fill(target, single, messages, 1))
        run = partial(consume, target, messages=messages)
        return {
            "exclusive": run(many, "exclusive", "exclusive", 1, per_key=1, fail_every=0),
            "1,000 keys": run(many, "strict", "key-shared", CONSUMERS, per_key=1, fail_every=0),
            "1,000 keys, 64 of each": run(many, "runs", "key-shared", CONSUMERS, per_key=64, fail_every=0),
            "one key": run(single, "runs", "key-shared", CONSUMERS, per_key=1_000, fail_every=0),
            "redeliveries": run(many, "failing", "shared", CONSUMERS, per_key=1, fail_every=10),
        }


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, GOAL, Goal(at_least=0.5), partial(_measure, bench))


def _measure(bench: Bench) -> list[Row]:
    messages = int(bench.pick(300_000, 20_000))
    found = bench.interleave(bench.rounds(3), {"all": lambda path: sides(path, messages)})["all"]
    exclusive = [run["exclusive"] for run in found]
    rows = [_ratio(side, [run[side] for run in found], exclusive) for side in SIDES]
    one_key = [run["one key"] for run in found]
    rows.append(
        Row(
            NAME,
            "one key, messages per second",
            Figure(one_key, "/s"),
            Goal(at_least=50_000, unit="/s"),
            ours=str(Figure(one_key, "/s")),
        )
    )
    return rows


def _ratio(side: str, ours: list[float], exclusive: list[float]) -> Row:
    return Row(
        NAME,
        f"{side}: catch-up of {CONSUMERS} consumers against one exclusive consumer",
        ratios(ours, exclusive),
        Goal(at_least=0.5) if side == "1,000 keys" else None,
        ours=str(Figure(ours, "/s")),
        peer=str(Figure(exclusive, "/s")),
        peer_version="icestream, exclusive",
    )
