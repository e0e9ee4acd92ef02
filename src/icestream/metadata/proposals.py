"""What this node has proposed, or is about to: in the queue, then in the log by index, until it is applied.

    queued --nothing is in the log, or much is queued: a batch is taken--> in the log
    in the log --the entry of its index is applied--> answered
What was in the log when the node lost the lead, or stopped, has an unknown outcome; what was in the queue has none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.eraftpb import LogEntry
from icestream.metadata.log_format import ENTRY_OVERHEAD_BYTES

Answer = asyncio.Future[cmd.Answer]
UNKNOWN_HINT: Final = "read what it would have changed, or repeat it under the same client and sequence"


@dataclass(slots=True)
class Proposal:
    data: bytes
    answer: Answer
    term: int = 0


class Proposals:
    def __init__(self, command_bytes_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._command_bytes_max = command_bytes_max
        self.queue: deque[Proposal] = deque()
        self.in_log: dict[int, Proposal] = {}
        self.queued_bytes = 0
        self.in_flight_bytes = 0  # queued, and in the log

    @property
    def are_under_way(self) -> bool:
        return bool(self.queue or self.in_log)

    def add(self, data: bytes) -> Answer:
        if len(data) > self._command_bytes_max:
            raise errors.MessageTooLarge(f"a command of {len(data)} bytes, at most {self._command_bytes_max} fit")
        if self.in_flight_bytes and self.in_flight_bytes + len(data) > limits.METADATA_IN_FLIGHT_BYTES_MAX:
            raise errors.InFlightFull(
                f"{self.in_flight_bytes} bytes of commands wait for the disk", hint="wait for answers, then send more"
            )
        answer: Answer = self._loop.create_future()
        self.queue.append(Proposal(data, answer))
        self.queued_bytes += len(data)
        self.in_flight_bytes += len(data)
        return answer

    @property
    def may_go(self) -> bool:
        """True if commands wait and none is in flight, or enough wait to fill a write."""
        return bool(self.queue) and (not self.in_log or self.queued_bytes >= limits.METADATA_GATHERED_BYTES)

    def take_batch(self, bytes_max: int, has_room: Callable[[int, int], bool]) -> list[Proposal]:
        """Takes as many commands as fit a record and the file."""
        batch: list[Proposal] = []
        queue, size = self.queue, 0
        while queue:
            size += len(queue[0].data)
            if batch and size + len(batch) * ENTRY_OVERHEAD_BYTES > bytes_max:
                break
            if not has_room(size, len(batch) + 1):
                break
            batch.append(queue.popleft())
        self.queued_bytes -= sum([len(proposal.data) for proposal in batch])
        return batch

    def logged(self, proposal: Proposal, index: int, term: int) -> None:
        proposal.term = term
        self.in_log[index] = proposal

    def applied(self, entry: LogEntry, answer: cmd.Answer | None) -> None:
        """The command of an entry; None for an empty entry."""
        proposal = self.in_log.pop(entry.index, None)
        if proposal is None:
            return
        self.in_flight_bytes -= len(proposal.data)
        if proposal.answer.done():
            return
        if proposal.term != entry.term:
            proposal.answer.set_exception(lead_lost())
        elif answer is None:
            # the core put an empty entry in the place of a change of members
            proposal.answer.set_exception(errors.NotReady("another change of members is under way", hint="try again"))
        else:
            proposal.answer.set_result(answer)

    def refuse(self, proposals: Iterable[Proposal], error: errors.IcestreamError) -> None:
        for proposal in proposals:
            self.in_flight_bytes -= len(proposal.data)
            if not proposal.answer.done():
                proposal.answer.set_exception(error)

    def refuse_queue(self, error: errors.IcestreamError) -> None:
        """Fails the queued commands: nothing of them was stored."""
        refused, self.queue, self.queued_bytes = self.queue, deque(), 0
        self.refuse(refused, error)

    def lose(self, error: errors.OutcomeUnknown) -> None:
        """Fails the commands in the log with an unknown outcome: they may still be applied."""
        lost, self.in_log = self.in_log, {}
        self.refuse(lost.values(), error)

    def end(self, unknown: errors.OutcomeUnknown, refused: errors.IcestreamError) -> None:
        """Fails everything: the node stops."""
        self.lose(unknown)
        self.refuse_queue(refused)


def lead_lost() -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown("another node took the lead", hint=UNKNOWN_HINT)


def not_leading() -> errors.NotReady:
    return errors.NotReady("this node is not the leader", hint="send the request to the leader")
