"""Whether a node without a record is a member: what one known member confirms."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors, limits
from icestream.cluster.member_check import MemberCheck
from icestream.cluster.wire import id_text
from icestream.rpc.document import Document
from icestream.runtime.tasks import Tasks
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.asyncio


class KnownMember:
    """A member that knows some nodes, or does not answer."""

    def __init__(self, *nodes: tuple[int, str]) -> None:
        self.nodes = {(id_text(node_id), name) for node_id, name in nodes}
        self.answers = True
        self.questions = 0

    async def ask(self, arguments: Document) -> Document:
        self.questions += 1
        if not self.answers:
            raise errors.NotReady("no link")
        return {"is_member": (arguments["node"], arguments["name"]) in self.nodes}


class Asking:
    def __init__(self, *members: KnownMember) -> None:
        self.clock = FakeClock()
        self.failures: list[BaseException] = []
        self.tasks = Tasks(self.failures.append)
        self.check = MemberCheck(self.clock, self.tasks, lambda: [member.ask for member in members])

    async def ask(self, node_id: int, name: str) -> bool:
        """Whether the node is confirmed when the members have answered."""
        self.check.is_member(node_id, name)
        for _ in range(10):
            await asyncio.sleep(0)
        return self.check.is_member(node_id, name)


async def test_one_member_confirms_id_and_name() -> None:
    silent, member = KnownMember(), KnownMember((4, "node-4"))
    silent.answers = False
    asking = Asking(silent, member)
    assert not asking.check.is_member(4, "node-4")  # not before an answer
    assert await asking.ask(4, "node-4")
    assert not await asking.ask(5, "node-4")
    assert not await asking.ask(4, "thief")
    assert (asking.check.name_of(4), asking.check.name_of(5)) == ("node-4", "")
    questions = member.questions
    assert await asking.ask(4, "node-4")
    assert member.questions == questions  # it is remembered
    await asking.tasks.stop()
    assert not asking.failures


async def test_a_refused_node_is_checked_again_later() -> None:
    member = KnownMember()
    asking = Asking(member)
    for _ in range(3):
        assert not await asking.ask(4, "node-4")
    assert member.questions == 1
    member.nodes.add((id_text(4), "node-4"))
    asking.clock.advance(limits.MEMBERSHIP_LOOK_SECONDS)
    assert await asking.ask(4, "node-4") or await asking.ask(4, "node-4")
    await asking.tasks.stop()


async def test_strangers_cost_a_bounded_number_of_questions() -> None:
    member = KnownMember()
    asking = Asking(member)
    for node_id in range(100):
        await asking.ask(node_id, "thief")
    assert member.questions == limits.MEMBER_QUESTIONS_MAX
    await asking.tasks.stop()


async def test_without_a_member_to_ask_no_node_is_confirmed() -> None:
    asking = Asking()
    assert not await asking.ask(4, "node-4")
    await asking.tasks.stop()
