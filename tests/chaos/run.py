"""One chaos run: nodes, clients, faults, and the verdict. The exit code says it.

    python -m tests.chaos.run --seed 7 --seconds 60 --nodes 5

Everything random follows from the seed, which is printed first; times are real, so a seed makes the same faults at
about the same moments, not the same history. What a run that fails has left (disks, what nodes said, the history) is
kept and named; otherwise it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from icestream.metadata import command as cmd
from tests.chaos import checkers, linearizability
from tests.chaos.clients import WIDTH, Clients, register_key
from tests.chaos.history import UNKNOWN, OperationHistory
from tests.chaos.nemesis import DISK_KINDS, KINDS, Nemesis
from tests.chaos.nodes import ChaosNodes
from tests.chaos.store_client import IcestreamConnector

# The gate of a long run, by the minute.
ACKED_PER_MINUTE, FAULTS_PER_MINUTE = 10_000, 10


@dataclass
class Verdict:
    seed: int
    seconds: float
    history: OperationHistory
    violations: list[str]
    missing: list[str] = field(default_factory=list)  # what a run must have had to prove anything
    folder: Path | None = None
    compared: int = 0

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.missing

    def text(self) -> str:
        history = self.history
        unknown = sum(operation.outcome == UNKNOWN for operation in history.operations)
        lines = [
            f"seed {self.seed}: {history.acked} acked, {unknown} unknown, {sum(history.faults.values())} faults in "
            f"{self.seconds:.0f} s, {len(history.terms)} terms seen, {self.compared} states compared, "
            f"{history.installs} snapshots installed, {len(self.violations)} violations",
            f"  faults: {dict(sorted(history.faults.items()))}",
        ]
        lines += [f"  VIOLATION {violation}" for violation in self.violations[: checkers.SHOWN_MAX]]
        lines += [f"  MISSING {gap}" for gap in self.missing]
        if not self.is_good:
            lines.append(f"  kept in {self.folder}")
        return "\n".join(lines)


@dataclass(frozen=True)
class ChaosPlan:
    seed: int
    seconds: float = 20.0
    nodes: int = 3
    disk: str = "losing"
    bug: str = ""
    only: tuple[str, ...] = ()  # these kinds of faults; none: all
    patience_seconds: float = 60.0

    @property
    def kinds(self) -> tuple[str, ...]:
        if self.only:
            return self.only
        return KINDS if self.disk == "losing" else tuple(kind for kind in KINDS if kind not in DISK_KINDS)


async def run(plan: ChaosPlan, folder: Path) -> Verdict:
    patience = plan.patience_seconds
    nodes = ChaosNodes(folder, plan.nodes, seed=plan.seed, disk=plan.disk, bug=plan.bug, patience_seconds=patience)
    history = OperationHistory()
    try:
        nodes.start_missing()
        await nodes.until(lambda: _has_voters(nodes, plan.nodes))
        clients = Clients(IcestreamConnector(nodes), history, plan.seed)
        clients.start()
        begun = time.monotonic()
        try:
            try:
                await Nemesis(nodes, history, plan.seed, plan.kinds, patience).run(plan.seconds)
                seconds = time.monotonic() - begun
                nodes.start_missing()
                await nodes.until(lambda: all(member.status.get("is_ready") for member in nodes.members.values()))
                history.healed = time.monotonic_ns()
                async with asyncio.timeout(2 * patience):
                    await clients.finish()
                    await settle(nodes, clients, plan.seed)
            finally:
                await clients.close()
        except TimeoutError:
            standing = {member.number: member.status for member in nodes.members.values()}
            stuck = [f"the nodes did not come together again: {standing}"]
            return Verdict(plan.seed, time.monotonic() - begun, history, stuck + judge(history, nodes)[0], [], folder)
    finally:
        nodes.close()
    violations, compared = judge(history, nodes)
    verdict = Verdict(plan.seed, seconds, history, violations, folder=folder, compared=compared)
    verdict.missing = missing(verdict, plan.kinds)
    return verdict


def _has_voters(nodes: ChaosNodes, count: int) -> bool:
    return all(len(member.status.get("voters", ())) == count for member in nodes.members.values())


async def settle(nodes: ChaosNodes, clients: Clients, seed: int) -> None:
    """Reads every answered value again, waits for the watchers, and compares the states."""
    await clients.read_all(random.Random(seed))
    await nodes.until_whole()
    leader = await nodes.leader()
    assert leader is not None
    await nodes.ask(leader, "submit", msgspec.msgpack.encode(cmd.TakeSnapshot()), b"", 0, seconds=10.0)
    await nodes.until(lambda: _have_one_snapshot(nodes))
    revision = max(member.status["revision"] for member in nodes.members.values())
    await nodes.until(lambda: min(clients.last_revisions) >= revision)
    clients.history.installs = sum(member.status["installs"] for member in nodes.members.values())


def _have_one_snapshot(nodes: ChaosNodes) -> bool:
    statuses = [member.status for member in nodes.members.values()]
    return all(statuses) and len({status["snapshot_index"] for status in statuses}) == 1


def judge(history: OperationHistory, nodes: ChaosNodes) -> tuple[list[str], int]:
    folders = [member.folder for member in (*nodes.members.values(), *nodes.gone)]
    watched, ledger = checkers.watch_violations(history.watchings)
    hashes, compared = checkers.hash_violations(folders)
    violations = [
        *linearizability.violations(history.operations, WIDTH),
        *watched,
        *checkers.revision_violations(history.operations, ledger, register_key),
        *checkers.id_violations(history.ids),
        *checkers.ttl_violations(history),
        *checkers.vote_violations(folders),
        *hashes,
    ]
    return violations, compared


def missing(verdict: Verdict, kinds: tuple[str, ...]) -> list[str]:
    """A run in which nothing happened proves nothing."""
    history = verdict.history
    gaps = [f"no {kind}" for kind in kinds if not history.faults[kind] and sum(history.faults.values()) >= len(kinds)]
    if len(history.terms) < 2:
        gaps.append("no election was seen")
    if not verdict.compared:
        gaps.append("no states were compared")
    if not history.ids and not history.ttl_reads:
        gaps.append("no ids and no expiring keys")
    if history.ttl_reads and not history.renewals:
        gaps.append("no lease was renewed")
    return gaps


def below_the_gate(verdict: Verdict) -> list[str]:
    """Of a long run on a machine that is not busy with other things."""
    history, minutes, shortfalls = verdict.history, verdict.seconds / 60, []
    if history.acked < ACKED_PER_MINUTE * minutes:
        shortfalls.append(f"only {history.acked} acked, {ACKED_PER_MINUTE * minutes:.0f} wanted")
    if sum(history.faults.values()) < FAULTS_PER_MINUTE * minutes:
        shortfalls.append(f"fewer than {FAULTS_PER_MINUTE} faults a minute")
    return shortfalls


def main() -> None:
    parser = argparse.ArgumentParser(description="Breaks nodes of the metadata store and checks what clients saw.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--disk", choices=("losing", "native"), default="losing")
    parser.add_argument("--bug", default="")
    options = parser.parse_args()
    plan = ChaosPlan(options.seed, options.seconds, options.nodes, options.disk, options.bug)
    print(f"seed {plan.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{plan.seed}-"))
    verdict = asyncio.run(run(plan, folder))
    verdict.missing += below_the_gate(verdict)
    if verdict.is_good:
        shutil.rmtree(folder)
    else:
        verdict.history.save(folder / "history")
    print(verdict.text(), flush=True)
    sys.exit(0 if verdict.is_good else 1)


if __name__ == "__main__":
    main()
