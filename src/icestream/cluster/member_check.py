"""Whether a node that this one has no record of is a member: asked of the members that this node knows (hazard 105).

A node that was away, or has just joined, gets messages of a leader before the record of that leader. Its certificate
proves the name alone; a certificate is not a membership. So its messages are dropped, which Raft repeats, until a node
of the known configuration, whose own certificate matches its record, confirms id and name (call IsMember).

    unknown    --a message-->  asked    --confirmed by one member-->  confirmed, until this process ends
    asked      --by none-->    unknown; asked again with a message after MEMBERSHIP_LOOK_SECONDS

A node without any record, which waits to join, asks the addresses that its operator has configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from icestream import errors, limits
from icestream.cluster.wire import id_text
from icestream.observability.log import get_logger
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("cluster")
Question = Callable[[Document], Awaitable[Document]]
Member = tuple[int, str]  # node id and the name of its certificate


class MemberCheck:
    def __init__(self, clock: Clock, tasks: Tasks, questions: Callable[[], list[Question]]) -> None:
        """`questions`: ways to ask each node that may answer, as they are now."""
        self._clock = clock
        self._tasks = tasks
        self._questions = questions
        self._confirmed: dict[Member, None] = {}
        self._asked: set[Member] = set()
        self._logged: set[Member] = set()

    def name_of(self, node_id: int) -> str:
        """The confirmed name of a node; empty if none is."""
        return next((name for confirmed, name in self._confirmed if confirmed == node_id), "")

    def is_member(self, node_id: int, name: str) -> bool:
        """True if a member has confirmed the node; else asks them, unless that is under way."""
        member = (node_id, name)
        if member in self._confirmed:
            return True
        if member not in self._asked and len(self._asked) < limits.MEMBER_QUESTIONS_MAX:
            self._asked.add(member)
            self._tasks.start(self._ask(member), f"member-{id_text(node_id)}")
        return False

    async def _ask(self, member: Member) -> None:
        arguments: Document = {"node": id_text(member[0]), "name": member[1]}
        try:
            answers = await asyncio.gather(*(_answer(question, arguments) for question in self._questions()))
            if any(answers):
                self._confirmed[member] = None
                if len(self._confirmed) > limits.PEERS_LEARNED_MAX:
                    del self._confirmed[next(iter(self._confirmed))]
                return
            self._log_refusal(member)
            await self._clock.sleep(limits.MEMBERSHIP_LOOK_SECONDS)
        finally:
            self._asked.discard(member)

    def _log_refusal(self, member: Member) -> None:
        if member not in self._logged and len(self._logged) < limits.PEERS_LEARNED_MAX:
            self._logged.add(member)
            _log.warning(
                "messages of a node are dropped: no member that this node knows confirms it",
                node=id_text(member[0]),
                name=member[1],
            )


async def _answer(question: Question, arguments: Document) -> bool:
    """Whether one member confirms the node; False if it does not answer."""
    try:
        return (await question(arguments)).get("is_member") is True
    except errors.IcestreamError:
        return False
