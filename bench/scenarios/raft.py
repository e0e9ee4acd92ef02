"""The metadata store with three nodes against a three-node etcd: one machine, a client process and a hop on both sides.

puts      256 bytes, at the leader, synced by a majority, proposed once and never repeated: 1 writer, and 64
reads     linearizable, at the leader: 64 readers with one request under way each, and with 16
          Our client is the load generator, etcd's is h2load, which costs less than any client of gRPC: a thread each.
failover  kill -9 of the leader until the next write is accepted by one of the others; elections after 500 ms
transfer  the lead is handed over until the next write is accepted
restart   all nodes are killed with 100,000 keys, and started: until a write is accepted
idle      CPU time of all nodes together, from /proc
publish   one producer that awaits each ack, `always`, beside 100 metadata writes a second on the same broker and disk
million   1,000,000 keys, a snapshot every 200 entries, 64 writers: the longest time for which a loop did not turn, and
          whether anybody held an election. The time in which a node waited for a core is left out of it: clients and
          three nodes, all busy, share the cores of one machine
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench import broker, generator, process
from bench.figures import Figure, Goal, Row, percentile, ratios
from bench.generator import Load, Target
from bench.harness import Bench, RunFailed
from bench.peers import etcd
from bench.raft import cluster
from bench.raft.client_port import ClientLink, NodeRefused
from bench.raft.cluster import Cluster
from icestream import limits
from icestream.metadata import command as cmd

NAME = "raft"
GOAL = "puts 3x etcd at 64 writers, 1x at 1; reads 2.5x and 8x; failover p95 <= 1 s; transfer <= 50 ms; 1 M keys"
# kind, connections, in flight on each; the goal
LOADS: dict[str, tuple[str, int, int, float]] = {
    "puts, 1 writer": ("put", 1, 1, 1.0),
    "puts, 64 writers": ("put", 64, 1, 3),
    "linearizable reads, 64 readers": ("get", 64, 1, 2.5),
    "linearizable reads, 64 readers, 16 in flight each": ("get", 64, 16, 8),
}
KEYS_PER_COMMAND = 500
METADATA_WRITES_PER_SECOND = 100
BESIDE = Goal(at_most=1.1)
Rates = dict[str, float]


def measure(bench: Bench) -> list[Row]:
    parts: list[tuple[str, Goal, Callable[[Bench], list[Row]]]] = [
        ("against etcd", Goal(at_least=3), _against_etcd),
        ("failover", Goal(at_most=1, unit=" s"), _failover),
        ("restart", Goal(at_most=3, unit=" s"), _restart),
        ("idle", Goal(at_most=1, unit=" %"), _idle),
        ("publish beside metadata work", BESIDE, _publish),
        ("a million keys", Goal(at_most=10, unit=" ms"), _million),
    ]
    return [row for what, goal, part in parts for row in bench.attempt(NAME, what, goal, partial(part, bench))]


# --- speed ------------------------------------------------------------------------------------------------------------


def _against_etcd(bench: Bench) -> list[Row]:
    name, seconds = etcd.version(), bench.pick(5, 1)

    def ours(path: Path) -> Rates:
        with cluster.running(path) as nodes:
            leader = nodes.leader()
            nodes.load(leader, "put", 8, 1, 1)  # warm
            found = {what: nodes.load(leader, *one[:3], seconds) for what, one in LOADS.items()}
            return {what: one.rate for what, one in found.items()}

    def theirs(path: Path) -> Rates:
        with etcd.running(path) as clients:
            etcd.load(clients[0], path, "put", 8, 1, 1)
            return {what: etcd.load(clients[0], path, *one[:3], seconds) for what, one in LOADS.items()}

    found = bench.interleave(bench.rounds(5), {"ours": ours, "etcd": theirs})
    rows = []
    for what, one in LOADS.items():
        our, their = ([rates[what] for rates in found[side]] for side in ("ours", "etcd"))
        figure = ratios(our, their)
        ours_text, peer_text = str(Figure(our, "/s")), str(Figure(their, "/s"))
        rows.append(Row(NAME, what, figure, Goal(at_least=one[3]), ours_text, peer_text, name))
    return rows


# --- failover, transfer -----------------------------------------------------------------------------------------------


def _failover(bench: Bench) -> list[Row]:
    kills, transfers = int(bench.pick(20, 2)), int(bench.pick(20, 3))
    with bench.place("failover") as path, cluster.running(path) as nodes:
        bench.tell("killing leaders")
        took = [_kill_leader(nodes, is_idle=bool(number % 2)) for number in range(kills)]
        bench.tell("handing over")
        handed = [_hand_over(nodes) for _ in range(transfers)]
    return [
        Row(
            NAME,
            f"kill -9 of the leader to the next accepted write, p95 of {kills}",
            Figure([percentile(took, 0.95)], " s"),
            Goal(at_most=1.0, unit=" s"),
            ours=f"median {percentile(took, 0.5):.2f} s, most {max(took):.2f} s",
        ),
        Row(
            NAME,
            f"the lead handed over to the next accepted write, p95 of {transfers}",
            Figure([1000 * percentile(handed, 0.95)], " ms"),
            Goal(at_most=50, unit=" ms"),
            ours=f"median {1000 * percentile(handed, 0.5):.1f} ms",
        ),
    ]


def _kill_leader(nodes: Cluster, *, is_idle: bool) -> float:
    """One that works, or one that has nothing to do for a while: then it sends fewer heartbeats."""
    leader = nodes.leader()
    if is_idle:
        time.sleep(2 * limits.METADATA_IDLE_SECONDS)

    async def kill(links: list[ClientLink]) -> float:
        others = [link for number, link in zip(nodes.processes, links, strict=True) if number != leader]
        start = time.monotonic()
        nodes.kill(leader)
        await others[0].ask("put", "/bench/failover", b"")
        return time.monotonic() - start

    took = nodes.work(kill)
    nodes.start(leader)
    return took


def _hand_over(nodes: Cluster) -> float:
    leader = nodes.leader()

    async def hand_over(links: list[ClientLink]) -> float:
        start = time.monotonic()
        at = list(nodes.processes).index(leader)
        await links[at].ask("call", "Transfer", {})
        await links[at - 1].ask("put", "/bench/transfer", b"")
        return time.monotonic() - start

    return nodes.work(hand_over)


# --- restart, idle ----------------------------------------------------------------------------------------------------


async def _fill(links: list[ClientLink], keys: int) -> None:
    """Through the log, as everybody's keys."""
    value = bytes(50)

    async def some(number: int) -> None:
        for start in range(number * KEYS_PER_COMMAND, keys, 8 * KEYS_PER_COMMAND):
            those = range(start, min(start + KEYS_PER_COMMAND, keys))
            puts: list[cmd.Operation] = [cmd.Put(f"/bench/filled/{run:08d}", value) for run in those]
            await links[0].ask("submit", msgspec.msgpack.encode(cmd.Txn([], puts)), b"", 0)

    await asyncio.gather(*(some(number) for number in range(8)))


def _restart(bench: Bench) -> list[Row]:
    keys = int(bench.pick(100_000, 5_000))

    def restart(path: Path) -> float:
        with cluster.running(path) as nodes:
            nodes.work(partial(_fill, keys=keys))
            for number in tuple(nodes.processes):
                nodes.kill(number)
            start = time.monotonic()
            for number in range(cluster.NODES):
                nodes.start(number)
            while not _is_accepted(nodes):
                time.sleep(0.01)
            return time.monotonic() - start

    found = bench.interleave(bench.rounds(3), {"restart": restart})["restart"]
    what = f"all nodes killed with {keys:,} keys, and started, until a write is accepted"
    return [Row(NAME, what, Figure(found, " s"), Goal(at_most=3, unit=" s"))]


def _is_accepted(nodes: Cluster) -> bool:
    try:
        nodes.ask(0, "put", "/bench/restarted", b"")
    except (OSError, TimeoutError, NodeRefused):
        return False
    return True


def _idle(bench: Bench) -> list[Row]:
    seconds = bench.pick(30, 2)

    def idle(path: Path) -> float:
        with cluster.running(path) as nodes:
            nodes.load(nodes.leader(), "put", 1, 1, 1)
            time.sleep(bench.pick(3, 1))
            began, cpu = time.monotonic(), process.thread_seconds(nodes.pids)
            time.sleep(seconds)
            return 100 * (process.thread_seconds(nodes.pids) - cpu) / (time.monotonic() - began)

    found = bench.interleave(1, {"idle": idle})["idle"]
    goal = Goal(at_most=1, unit=" %")
    return [
        Row(NAME, f"an idle cluster of three, {seconds:g} s: share of a core, all together", Figure(found, " %"), goal)
    ]


# --- publish beside metadata work -------------------------------------------------------------------------------------


def _publish(bench: Bench) -> list[Row]:
    seconds = bench.pick(5, 1)
    found = bench.interleave(bench.rounds(5), {"ours": partial(_beside, seconds=seconds)})["ours"]
    quiet, busy = [one for one, _ in found], [one for _, one in found]
    medians = [[load.p50_us for load in side] for side in (busy, quiet)]
    tails = [[load.p99_us for load in side] for side in (busy, quiet)]
    what = f"one producer awaiting each ack, `always`, beside {METADATA_WRITES_PER_SECOND} metadata writes a second"
    return [
        Row(NAME, f"{what}: {name}", ratios(*sides), goal, ours=str(Figure(sides[0], " us")),
            peer=str(Figure(sides[1], " us")), peer_version="the same alone")
        for name, sides, goal in (("p50", medians, BESIDE), ("p99", tails, None))
    ]  # fmt: skip


def _beside(path: Path, seconds: float) -> tuple[Load, Load]:
    """Alone, and beside metadata work; each after the other, on the same broker."""
    with broker.running(path, "always") as target:
        broker.warm(target, path)
        quiet = _awaiting(target, seconds, "quiet")
        words = [sys.executable, "-m", "bench.raft.metadata_work", str(path / "icestream" / "broker.sock")]
        words += [str(METADATA_WRITES_PER_SECOND), str(seconds * 1.5)]
        child = subprocess.Popen(words, cwd=cluster.ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RunFailed("the metadata work did not begin")
            return quiet, _awaiting(target, seconds, "busy")
        finally:
            child.kill()
            child.communicate()


def _awaiting(target: Target, seconds: float, topic: str) -> Load:
    return generator.publish("native", target, connections=1, seconds=seconds, warm_seconds=seconds / 5, topic=topic)


# --- a million keys ---------------------------------------------------------------------------------------------------


def _million(bench: Bench) -> list[Row]:
    keys, seconds = int(bench.pick(1_000_000, 20_000)), bench.pick(20, 2)

    def stalls(path: Path) -> tuple[list[float], int, int]:
        with cluster.running(path, snapshot_every_entries=200) as nodes:
            nodes.work(partial(_fill, keys=keys - 1_000))
            leader = nodes.leader()
            before = [nodes.status(number) for number in nodes.processes]
            for number in nodes.processes:
                nodes.ask(number, "stalls")
            nodes.load(leader, "put", 64, 1, seconds)
            found = [nodes.ask(number, "stalls") for number in nodes.processes]
            after = [nodes.status(number) for number in nodes.processes]
        elections = max(status["term"] for status in after) - max(status["term"] for status in before)
        taken = sum(_snapshots(*both) for both in zip(before, after, strict=True))
        if not taken:
            raise RunFailed("no snapshot was taken: nothing was measured")
        return [max(times) for times in zip(*found, strict=True)], elections, taken

    (wall, held, own), elections, taken = bench.interleave(1, {"a million keys": stalls})["a million keys"][0]
    note = f"{taken} nodes took snapshots meanwhile"
    goal = Goal(at_most=10, unit=" ms")
    return [
        Row(NAME, f"{keys:,} keys, a snapshot every 200 entries, 64 writers: longest stall of a loop",
            Figure([1000 * held], " ms"), goal, note=note,
            ours=f"of its own work {1000 * own:.1f} ms, with waits for a core {1000 * wall:.1f} ms"),
        Row(NAME, "elections meanwhile", Figure([elections]), Goal(at_most=0, unit="")),
    ]  # fmt: skip


def _snapshots(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return bool(after["snapshot_index"] > before["snapshot_index"])
