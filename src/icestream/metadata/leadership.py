"""The leadership handle (seed 004): which node leads, without other details of consensus."""

from __future__ import annotations

import contextlib

from icestream import errors, limits
from icestream.metadata.node import Node


class Leadership:
    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def is_leader(self) -> bool:
        """True if this node is the leader and has applied everything of former leaders."""
        return self._node.leads

    @property
    def leader(self) -> int:
        """The id of the leader as far as this node knows, 0 if there is none."""
        return self._node.leader

    @property
    def term(self) -> int:
        return self._node.status()["term"]

    async def until_leader(self) -> None:
        await self._node.until(lambda: self._node.leads)

    async def hand_over(self, to: int = 0) -> None:
        """Transfers leadership to this voter, or to the most advanced one, without waiting for an election."""
        node = self._node
        target = to or self._furthest()
        if not node.leads or not target or target == node.id:
            return
        node.transfer(target)
        with contextlib.suppress(errors.IcestreamError):
            await node.until(lambda: not node.leads, limits.METADATA_CLOSE_SECONDS_MAX)

    def _furthest(self) -> int:
        progress, voters = self._node.status()["progress"], self._node.members.voters
        others = [
            (match, node_id) for node_id, (match, _, is_active) in progress.items() if is_active and node_id in voters
        ]
        return max([other for other in others if other[1] != self._node.id], default=(0, 0))[1]
