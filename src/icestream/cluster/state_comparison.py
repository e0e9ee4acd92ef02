"""Tells the others the hash of this node's state at each common snapshot, and acts on what they tell."""

from __future__ import annotations

import contextlib

from icestream import errors
from icestream.cluster.peers import Peers
from icestream.cluster.state_hashes import StateHashes, Verdict
from icestream.cluster.wire import id_text
from icestream.metadata.node import Node
from icestream.observability import metrics
from icestream.observability.log import get_logger

_log = get_logger("cluster")


class StateComparison:
    def __init__(self, node: Node, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self.hashes = StateHashes(node.id)

    def taken(self, index: int, digest: bytes) -> None:
        """A snapshot of this node is on disk."""
        self.hashes.note(self._node.id, index, digest)
        members = self._node.members
        for other in {*members.voters, *members.learners} - {self._node.id}:
            self._node.tasks.start(self._tell(other, index, digest), "state-hash")
        self._judge(index)

    async def _tell(self, other: int, index: int, digest: bytes) -> None:
        """A node that is away compares at the next one."""
        arguments = {"node": id_text(self._node.id), "index": index, "hash": digest}
        with contextlib.suppress(errors.IcestreamError):
            await self._peers.call(other, "StateHash", arguments)

    def heard(self, other: int, index: int, digest: bytes) -> None:
        if other != self._node.id:
            self.hashes.note(other, index, digest)
            self._judge(index)

    def _judge(self, index: int) -> None:
        verdict = self.hashes.judge(index, self._node.members.voters)
        metrics.RAFT_STATES_COMPARED.value += verdict is not Verdict.UNKNOWN
        if verdict not in (Verdict.DIFFERENT, Verdict.OUTVOTED):
            return
        metrics.RAFT_STATES_DIFFERENT.value += 1
        others = [id_text(other) for other in self.hashes.differing(index)]
        _log.error("the states of nodes differ", index=index, nodes=others, verdict=verdict.value)
        if verdict is Verdict.OUTVOTED:
            self._node.fail(
                errors.LogStopped(
                    f"the state of this node at entry {index} is not the one of the other nodes",
                    hint="keep its data_dir for a report, then start the node anew with an empty one: it joins again",
                )
            )
