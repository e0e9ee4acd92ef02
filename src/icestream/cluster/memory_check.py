"""A starting member compares its log with what its peers remember of it, before it takes part (ADR 45).

    held        Raft messages are neither accepted nor sent, and no tick is made; calls are answered, GetNodeInfo too
    compared    a majority of the voters has answered, itself included, and the rest, too, or METADATA_COMPARE_SECONDS
                have passed; none remembers more than this log has     -> it takes part
    outdated    a node remembers more                                  -> this node stops with LogOutdated
    foreign     a node of another cluster answers, or one that knows that this node was removed, and no majority does
                                                                       -> this node stops with that node's error
Nodes that answer later are compared then. This node sends its own promise to the others, and writes theirs to its log,
METADATA_PROMISES_SECONDS after they changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from icestream import errors, limits
from icestream.cluster import wire
from icestream.cluster.promises import NONE, Promises, confirmed, may_take_part, present
from icestream.metadata.log_format import Promise
from icestream.metadata.stop_reasons import outdated
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

if TYPE_CHECKING:
    from icestream.cluster.cluster_node import ClusterNode

_log = get_logger("cluster")


class MemoryCheck:
    """The comparison of one node, and the exchange of promises afterwards."""

    def __init__(self, host: ClusterNode, clock: Clock, promises: Promises) -> None:
        self._host = host
        self._clock = clock
        self._promises = promises
        self._answered: set[int] = set()
        self._foreign: errors.ForeignCluster | None = None  # the error of a node of another cluster
        self._last_sent: Promise = NONE
        self._written: dict[int, Promise] = {}

    def remembered(self, node_id: int) -> Promise:
        """The highest promise that this node knows of another node."""
        store = self._host.store
        highest = confirmed(store.node.status(), self._host.id).get(node_id, NONE) if store is not None else NONE
        return max(highest, self._promises.of(node_id))

    def record_promise(self, node_id: int, promise: Promise) -> None:
        """Notes the promise that another node has sent."""
        self._promises.note(node_id, promise)

    # --- at the start ---

    async def run(self, on_compared: Callable[[], None]) -> None:
        """Compares the log with the memory of the others, then exchanges promises until cancelled or the node stops."""
        node = self._host.node
        try:
            await node.until(lambda: not node.is_replaying)  # the members are known only after the log was applied
            await self._compare()
            on_compared()
            while True:
                await self._exchange_promises()
                await self._ask_others()
        except (errors.LogOutdated, errors.ForeignCluster) as error:
            node.fail(error)
        except errors.IcestreamError as error:
            if node.stopped is None:
                _log.warning("exchange of confirmed promises stopped", error=str(error))

    async def _compare(self) -> None:
        """Asks the members until enough of them have answered."""
        node, begun_ns = self._host.node, self._clock.monotonic_ns()
        while True:
            others = self._others()
            await self._ask_others()
            waited_seconds = (self._clock.monotonic_ns() - begun_ns) / 1e9
            have_all_answered = others <= self._answered
            is_enough = may_take_part(self._host.id, node.members, self._answered)
            if is_enough and (have_all_answered or waited_seconds >= limits.METADATA_COMPARE_SECONDS):
                return
            if self._foreign is not None and not is_enough:
                raise self._foreign
            self._host.log_status("comparing the log with what the other nodes remember of it, before voting")
            await self._clock.sleep(limits.METADATA_COMPARE_RETRY_SECONDS)

    def _others(self) -> set[int]:
        return set(self._host.node.members.everybody) - {self._host.id}

    async def _ask_others(self) -> None:
        """Asks every member that has not answered since this process started."""
        missing = self._others() - self._answered
        if missing:
            places = {self._host.peers.address(node_id) for node_id in missing} | set(self._host.seed_addresses)
            await asyncio.gather(*(self._ask(place) for place in places if place))

    async def _ask(self, address: str) -> None:
        """Asks the node at an address what it remembers. Raises LogOutdated if that is more than this log has."""
        try:
            info = await self._host.fetch_info(address)
        except errors.ForeignCluster as error:
            self._foreign = error
            return
        if info is None or info.cluster != self._host.identity.cluster_id or info.node == self._host.id:
            return
        self._answered.add(info.node)
        own, remembered = present(self._host.node.status()), Promise(info.remembered_term, info.remembered_index)
        if remembered > own:
            witness = f"node {info.name or wire.id_text(info.node)}"
            raise outdated(
                witness, f"entry {remembered.last} of term {remembered.term}", f"entry {own.last}, in term {own.term}"
            )

    # --- afterwards ---

    async def _exchange_promises(self) -> None:
        """Waits for a change, then sends this node's promise and writes those of the others."""
        node = self._host.node
        seconds = limits.METADATA_PROMISES_SECONDS if self._others() - self._answered else None
        await node.until(self._has_news, seconds)
        if not self._has_news():
            return
        # Gathers changes: under load the promise moves with every entry, and a message for each would double the
        # traffic.
        await self._clock.sleep(limits.METADATA_PROMISES_SECONDS)
        own = node.writes.promise
        if own != self._last_sent:
            self._last_sent = own
            arguments = {"node": wire.id_text(self._host.id), "term": own.term, "index": own.last}
            await asyncio.gather(*(self._send_promise(node_id, arguments) for node_id in self._others()))
        for node_id, promise in confirmed(node.status(), self._host.id).items():
            self._promises.note(node_id, promise)
        promises = self._promises.keep(self._others())
        if promises != self._written and node.stopped is None:
            self._written = promises
            node.note_promises(promises)

    def _has_news(self) -> bool:
        return self._host.node.writes.promise != self._last_sent

    async def _send_promise(self, node_id: int, arguments: dict[str, object]) -> None:
        try:
            await self._host.peers.call(node_id, "Confirmed", arguments)
        except errors.IcestreamError as error:
            _log.debug("promise not delivered to another node", rpc="Confirmed", error=str(error))
