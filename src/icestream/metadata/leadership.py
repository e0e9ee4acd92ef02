"""Who leads, for everybody who has to know it and nothing else of consensus (seed 004: leadership handle)."""

from __future__ import annotations

import contextlib

from icestream import errors, limits
from icestream.metadata.node import Node


class Leadership:
    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def is_leader(self) -> bool:
        """And everything of former leaders is applied here."""
        return self._node.leads

    @property
    def leader(self) -> int:
        """The id of the node that leads as far as this one knows, 0 for nobody."""
        return self._node.leader

    @property
    def term(self) -> int:
        return self._node.status()["term"]

    async def until_leader(self) -> None:
        await self._node.until(lambda: self._node.leads)

    async def hand_over(self, to: int = 0) -> None:
        """The lead goes to this voter, or to the one that is furthest: at once instead of after an election."""
        node = self._node
        target = to or self._furthest()
        if not node.leads or not target or target == node.id:
            return
        node.transfer(target)
        with contextlib.suppress(errors.IcestreamError):
            await node.until(lambda: not node.leads, limits.METADATA_CLOSE_SECONDS_MAX)

    def _furthest(self) -> int:
        progress, voters = self._node.status()["progress"], self._node.members.voters
        others = [(match, one) for one, (match, _, is_active) in progress.items() if is_active and one in voters]
        return max([other for other in others if other[1] != self._node.id], default=(0, 0))[1]
