"""Commands that this node has proposed or is about to propose: queued, then in the log by index, until they are
applied.

    queued --nothing is in the log, or enough is queued--> in the log --the entry of its index is applied--> answered
When the node stops or loses the lead, the outcome of a command in the log is unknown; a queued one was not executed.
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

AnswerFuture = asyncio.Future[cmd.Answer]
UNKNOWN_HINT: Final = "read the keys it would have changed, or repeat it with the same client id and sequence number"


@dataclass(slots=True)
class Proposal:
    """One encoded command and the future of its answer; `term` is that of its entry."""

    data: bytes
    answer: AnswerFuture
    term: int = 0


class Proposals:
    """The commands of one node that are not answered yet."""

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

    def add(self, data: bytes) -> AnswerFuture:
        """Queues a command. Raises MessageTooLarge, InFlightFull."""
        if len(data) > self._command_bytes_max:
            raise errors.MessageTooLarge(f"command too large: {len(data)} bytes, limit {self._command_bytes_max}")
        if self.in_flight_bytes and self.in_flight_bytes + len(data) > limits.METADATA_IN_FLIGHT_BYTES_MAX:
            raise errors.InFlightFull(
                f"{self.in_flight_bytes} bytes of commands wait for the disk", hint="wait for answers, then send more"
            )
        answer: AnswerFuture = self._loop.create_future()
        self.queue.append(Proposal(data, answer))
        self.queued_bytes += len(data)
        self.in_flight_bytes += len(data)
        return answer

    @property
    def is_batch_due(self) -> bool:
        """True if commands are queued and none is in flight, or enough are queued to fill a write.

        One write at a time gathers what arrives during a sync into the next one (group commit, ADR 33).
        """
        return bool(self.queue) and (not self.in_log or self.queued_bytes >= limits.METADATA_GATHERED_BYTES)

    def take_batch(self, bytes_max: int, has_room: Callable[[int, int], bool]) -> list[Proposal]:
        """Takes as many commands as fit a record and the file."""
        batch: list[Proposal] = []
        queue, size = self.queue, 0
        while queue:
            size += len(queue[0].data)
            # The first command is taken however large it is: `command_bytes_max` has made sure that it fits a record.
            if batch and size + len(batch) * ENTRY_OVERHEAD_BYTES > bytes_max:
                break
            if not has_room(size, len(batch) + 1):
                break
            batch.append(queue.popleft())
        self.queued_bytes -= sum([len(proposal.data) for proposal in batch])
        return batch

    def add_logged(self, proposal: Proposal, index: int, term: int) -> None:
        """Remembers the index and term of the command's entry."""
        proposal.term = term
        self.in_log[index] = proposal

    def applied(self, entry: LogEntry, answer: cmd.Answer | None) -> None:
        """Answers the command of an applied entry; `answer` is None for an empty entry."""
        proposal = self.in_log.pop(entry.index, None)
        if proposal is None:
            return
        self.in_flight_bytes -= len(proposal.data)
        if proposal.answer.done():
            return
        # Another leader's entry has this index: the command was overwritten, or is at another index.
        if proposal.term != entry.term:
            proposal.answer.set_exception(lead_lost())
        elif answer is None:
            # The core replaces a change of members by an empty entry while another one is in progress.
            proposal.answer.set_exception(errors.NotReady("another change of members is in progress", hint="try again"))
        else:
            proposal.answer.set_result(answer)

    def refuse(self, proposals: Iterable[Proposal], error: errors.IcestreamError) -> None:
        """Fails proposals with an error that says that they were not executed."""
        for proposal in proposals:
            self.in_flight_bytes -= len(proposal.data)
            if not proposal.answer.done():
                proposal.answer.set_exception(error)

    def refuse_queue(self, error: errors.IcestreamError) -> None:
        """Fails the queued commands: nothing of them was stored."""
        refused, self.queue, self.queued_bytes = self.queue, deque(), 0
        self.refuse(refused, error)

    def fail_logged(self, error: errors.OutcomeUnknown) -> None:
        """Fails the commands in the log with an unknown outcome: they may still be applied."""
        lost, self.in_log = self.in_log, {}
        self.refuse(lost.values(), error)

    def end(self, unknown: errors.OutcomeUnknown, refused: errors.IcestreamError) -> None:
        """Fails everything: the node stops."""
        self.fail_logged(unknown)
        self.refuse_queue(refused)


def lead_lost() -> errors.OutcomeUnknown:
    """The error of a command whose leader lost the lead before it was applied."""
    return errors.OutcomeUnknown("another node became leader before the command was applied", hint=UNKNOWN_HINT)


def not_leading() -> errors.NotReady:
    """The error of a command on a node that is not the leader."""
    return errors.NotReady("this node is not the leader", hint="send the request to the leader")
