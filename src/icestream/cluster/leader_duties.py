"""Duties of the leader: promotes learners that have caught up until there are enough voters (members.py)."""

from __future__ import annotations

import contextlib

from icestream import errors, limits
from icestream.cluster.members import promotions, voters_wanted
from icestream.metadata.node_store import NodeStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("cluster")


class LeaderDuties:
    def __init__(self, store: NodeStore, clock: Clock) -> None:
        self._node = store.node
        self._clock = clock

    async def run(self) -> None:
        """Runs until the node stops. Sleeps while this node is not the leader or has enough voters."""
        with contextlib.suppress(errors.IcestreamError):
            while True:
                await self._node.until(self._are_voters_missing)
                await self._promote()
                await self._clock.sleep(limits.MEMBERSHIP_LOOK_SECONDS)

    def _are_voters_missing(self) -> bool:
        if not self._node.leads:
            return False
        members = self._node.members
        nodes = len(members.voters) + len(members.learners)
        return bool(members.learners) and len(members.voters) < voters_wanted(nodes)

    async def _promote(self) -> None:
        status = self._node.status()
        changes = promotions(self._node.members, status["progress"], status["last"])
        if not changes:
            return
        try:
            await self._node.change_members(changes)
            _log.info(
                "learners promoted to voters", voters=[f"{node_id:016x}" for node_id in self._node.members.voters]
            )
        except errors.IcestreamError as error:
            _log.warning("promotion of learners failed", error=str(error))
