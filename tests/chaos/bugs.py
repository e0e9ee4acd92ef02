"""Planted bugs of a node: each is one mistake that could be made. The short form of the chaos must catch each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icestream.metadata import command as cmd
from icestream.metadata.log_store import LogStore
from icestream.metadata.node import Node
from icestream.metadata.node_store import NodeStore
from icestream.metadata.proposals import Proposal, Proposals
from icestream.metadata.watch import WatchHub
from tests.chaos.losing_disk import DiskFaults

DROPPED_EVERY = 50


def no_fsync(faults: DiskFaults) -> None:
    """A sync does not wait for the disk: it returns at once and has done nothing."""
    faults.forgets_syncs = True


def vote_not_persisted(faults: DiskFaults) -> None:
    """The term is written, the vote of this node in it is not."""
    append = LogStore.append

    def without_vote(self: LogStore, entries: Any, state: Any, *more: Any) -> int:
        return append(self, entries, state and state._replace(vote=0), *more)

    LogStore.append = without_vote


def ack_before_commit(faults: DiskFaults) -> None:
    """A leader answers when the command is in its own log, before any other node has it."""
    logged = Proposals.add_logged
    set_machine = Node._set_conf

    def remember(self: Node, conf: bytes) -> None:
        set_machine(self, conf)
        Proposals.node = self

    def too_early(self: Proposals, proposal: Proposal, index: int, term: int) -> None:
        logged(self, proposal, index, term)
        is_put = proposal.data and isinstance(cmd.decode_envelope(proposal.data).command, cmd.Put)
        if is_put and not proposal.answer.done():
            proposal.answer.set_result(cmd.Done(Proposals.node.machine.revision + len(self.in_log)))

    Node._set_conf = remember
    Proposals.add_logged = too_early


def stale_read(faults: DiskFaults) -> None:
    """A linearizable read is answered from what is here."""

    async def at_once(self: NodeStore, consistency: Any) -> None:
        self.node.check_serving()

    NodeStore._wait_current = at_once


def dropped_watch_event(faults: DiskFaults) -> None:
    """One batch of changes in fifty is not sent to the watchers."""
    publish = WatchHub.publish

    def forgetful(self: WatchHub, events: Any) -> None:
        publish(self, events)
        if events and self.revision % DROPPED_EVERY == 0:
            self._kept[self.revision] = [], 0

    WatchHub.publish = forgetful


BUGS: dict[str, Callable[[DiskFaults], None]] = {
    "no_fsync": no_fsync,
    "vote_not_persisted": vote_not_persisted,
    "ack_before_commit": ack_before_commit,
    "stale_read": stale_read,
    "dropped_watch_event": dropped_watch_event,
}
