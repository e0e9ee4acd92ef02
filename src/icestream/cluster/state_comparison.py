"""Exchanges state digests with the other nodes at each common snapshot, and stops this node if it is outvoted."""

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

    def on_snapshot(self, index: int, digest: bytes) -> None:
        """Called when a snapshot of this node is on disk."""
        self.hashes.note(self._node.id, index, digest)
        members = self._node.members
        for other in {*members.voters, *members.learners} - {self._node.id}:
            self._node.tasks.start(self._send_digest(other, index, digest), "state-hash")
        self._judge(index)

    async def _send_digest(self, other: int, index: int, digest: bytes) -> None:
        """Best effort: an unreachable node compares at the next snapshot."""
        arguments = {"node": id_text(self._node.id), "index": index, "hash": digest}
        with contextlib.suppress(errors.IcestreamError):
            await self._peers.call(other, "StateHash", arguments)

    def on_digest(self, other: int, index: int, digest: bytes) -> None:
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
        _log.error("state machines of nodes differ", index=index, nodes=others, verdict=verdict.value)
        if verdict is Verdict.OUTVOTED:
            self._node.fail(
                errors.LogStopped(
                    f"the state of this node at entry {index} differs from the state of a majority of nodes",
                    hint="keep its data_dir for a report, then start the node with an empty one: it joins again",
                )
            )
