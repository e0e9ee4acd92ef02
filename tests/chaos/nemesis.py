"""What goes wrong in a chaos run, and when: drawn from the seed, one after the other, each healed before the next.

Every kind is drawn before any comes again, so a run that is long enough has them all (`KINDS`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import ClassVar

from tests.chaos.history import OperationHistory
from tests.chaos.nodes import AWAY, ChaosMember, ChaosNodes

HOLD_SECONDS = (0.2, 1.2)
PAUSE_SECONDS = (0.2, 0.6)
LEADER_SECONDS = 5.0
JOIN_SECONDS = 60.0
CLOCK_STEP_SECONDS = 3600.0


class Nemesis:
    def __init__(
        self,
        nodes: ChaosNodes,
        history: OperationHistory,
        seed: int,
        kinds: tuple[str, ...],
        patience_seconds: float = 60.0,
    ) -> None:
        self._nodes = nodes
        self._history = history
        self._chance = random.Random(f"{seed} nemesis")
        self.kinds = kinds
        self._patience_seconds = patience_seconds
        self._coming: list[str] = []

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            if not self._coming:
                self._coming = self._chance.sample(self.kinds, len(self.kinds))
            kind = self._coming.pop()
            await self._TABLE[kind](self)
            self._history.faults[kind] += 1
            self._nodes.start_missing()
            await self._note_terms()
            await asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS))

    async def _note_terms(self) -> None:
        await self._nodes.look()
        for member in self._nodes.members.values():
            if member.status:
                self._history.terms.add(member.status["term"])

    async def _hold(self) -> None:
        await asyncio.sleep(self._chance.uniform(*HOLD_SECONDS))

    async def _leader(self) -> ChaosMember:
        """The leader; any member when there is no leader in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LEADER_SECONDS
        while loop.time() < end:
            if (leader := await self._nodes.leader()) is not None:
                return leader
            self._nodes.start_missing()
            await asyncio.sleep(0.05)
        return self._any()

    def _any(self) -> ChaosMember:
        return self._chance.choice(self._nodes.up or list(self._nodes.members.values()))

    async def _victim(self) -> ChaosMember:
        return await self._leader() if self._chance.random() < 0.5 else self._any()

    # --- kills and pauses ---

    async def _kill_leader(self) -> None:
        self._nodes.kill(await self._leader())
        await self._hold()

    async def _kill_any(self) -> None:
        self._nodes.kill(self._any())
        await self._hold()

    async def _kill_all(self) -> None:
        await self._leader()  # so that there is something to lose
        for member in self._nodes.up:
            self._nodes.kill(member)

    async def _stop(self) -> None:
        member = await self._victim()
        self._nodes.stop(member)
        try:
            await self._hold()
        finally:
            self._nodes.go_on(member)

    async def _transfer(self) -> None:
        leader = await self._leader()
        try:
            await self._nodes.ask(leader, "call", "Transfer", {})
        except AWAY:
            self._history.faults["transfer that failed"] += 1

    # --- links ---

    async def _cut(self) -> None:
        victim = await self._victim()
        others = [member for member in self._nodes.members.values() if member is not victim]
        links = [(victim, other) for other in others] + [(other, victim) for other in others]
        await self._cut_for_a_while(links)

    async def _cut_one_way(self) -> None:
        victim = await self._victim()
        others = [member for member in self._nodes.members.values() if member is not victim]
        is_deaf = self._chance.random() < 0.5
        await self._cut_for_a_while([(other, victim) if is_deaf else (victim, other) for other in others])

    async def _cut_for_a_while(self, links: list[tuple[ChaosMember, ChaosMember]]) -> None:
        self._nodes.cut(links, holds=self._chance.random() < 0.5)
        try:
            await self._hold()
        finally:
            self._nodes.cut([])

    # --- disks and clocks ---

    async def _slow_sync(self) -> None:
        victim = await self._victim()
        self._nodes.order(victim, disk={"slow_seconds": self._chance.uniform(0.02, 0.3)})
        await self._hold()
        self._nodes.order(victim, disk={"slow_seconds": 0.0})

    async def _failing_sync(self) -> None:
        """The node stops by itself; it is started again."""
        self._nodes.order(await self._victim(), disk={"failing": True})
        await self._hold()

    async def _full_disk(self) -> None:
        victim = await self._victim()
        self._nodes.order(victim, disk={"full": True})
        await self._hold()
        self._nodes.order(victim, disk={"full": False})

    async def _clock_jump(self) -> None:
        step = self._chance.choice((-1, 1)) * CLOCK_STEP_SECONDS
        for member in self._nodes.up if self._chance.random() < 0.3 else [await self._victim()]:
            self._nodes.order(member, step_clock=step)

    # --- members ---

    async def _replace(self) -> None:
        """A node is lost for good; another one takes its place."""
        leader = await self._leader()
        victims = [member for member in self._nodes.members.values() if member is not leader and member.status]
        if not leader.status or not victims:
            self._history.faults["replace that failed"] += 1
            return
        victim = self._chance.choice(victims)
        try:
            await self._nodes.ask(leader, "call", "Remove", {"node": victim.status["node"]}, seconds=5.0)
        except AWAY:
            # it may have been carried out all the same: then it finds out and stops
            self._history.faults["replace that failed"] += 1
        added = self._nodes.add(leader)
        self._nodes.forget(victim)
        self._nodes.start(added)
        await self._nodes.until(lambda: bool(added.status.get("is_ready")), min(JOIN_SECONDS, self._patience_seconds))

    _TABLE: ClassVar[dict[str, Callable[[Nemesis], Awaitable[None]]]] = {
        "kill_leader": _kill_leader,
        "kill_any": _kill_any,
        "kill_all": _kill_all,
        "stop": _stop,
        "transfer": _transfer,
        "cut": _cut,
        "cut_one_way": _cut_one_way,
        "slow_sync": _slow_sync,
        "failing_sync": _failing_sync,
        "full_disk": _full_disk,
        "clock_jump": _clock_jump,
        "replace": _replace,
    }


KINDS = tuple(Nemesis._TABLE)
# Those that break the test's disk; the real one is not broken.
DISK_KINDS = ("slow_sync", "failing_sync", "full_disk")
