"""Routes commands and lease renewals to the leader, retries when it is lost, and applies a command once.

this node leads       the command is proposed here
another one leads     it is sent there (ClientWrite); the answer counts here when the state here has its revision,
                      so that whoever wrote reads it
nobody leads, or the lead was lost on the way: the same command, under the same name and number, once more

refused by the leader (full, too large)   raised, when no earlier try can have been carried out
no node has led for METADATA_LEADERLESS_SECONDS_MAX, or
no answer in METADATA_REMOTE_SECONDS_MAX  OutcomeUnknown when any try may have been carried out, else NotReady
this node stops, or is closed             the same, at once: what it says of itself is nothing about the command

A try that was sent and not answered may have been carried out, and so was one that the leader calls done while the
state here does not have it: from then on nothing but an answer is known, and no error is told but OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.client_ids import Names
from icestream.metadata.node import Node
from icestream.metadata.proposals import UNKNOWN_HINT
from icestream.runtime.clock import Clock

Found = TypeVar("Found")


class Forward(Protocol):
    async def __call__(self, leader: int, envelope: bytes) -> cmd.Answer:
        """Raises the leader's error, or ConnectionLost."""


class ForwardRenewal(Protocol):
    async def __call__(self, leader: int, key: str, revision: int) -> bool:
        """Raises what the leader says, or ConnectionLost."""


class Ways(Protocol):
    """Execution on this node and forwarding to another node (node_store.py)."""

    forward: Forward
    forward_renewal: ForwardRenewal

    async def propose(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer: ...

    async def renew_here(self, key: str, revision: int) -> bool: ...


class Routing:
    def __init__(self, node: Node, clock: Clock, token: bytes, ways: Ways) -> None:
        self._node = node
        self._clock = clock
        self._ways = ways
        self._names = Names(token, limits.METADATA_FORWARDED_COMMANDS_MAX)
        self._renewals = asyncio.Semaphore(limits.METADATA_RENEWALS_MAX)

    async def submit(self, command: cmd.Command, client: bytes, sequence: int) -> cmd.Answer:
        if client:
            return await self._until_known(partial(self._try, command, client, sequence))
        name = await self._names.take()
        try:
            return await self._until_known(partial(self._try, command, name.client, name.sequence))
        finally:
            self._names.give_back(name)

    async def renew(self, key: str, revision: int) -> bool:
        async with self._renewals:
            return await self._until_known(partial(self._try_renewal, key, revision))

    async def _until_known(self, attempt: Callable[[int], Awaitable[Found]]) -> Found:
        """Runs attempts until the deadline, which each attempt is given."""
        last_ns = self._clock.monotonic_ns() + int(limits.METADATA_REMOTE_SECONDS_MAX * 1e9)
        may_be_done = False
        led_ns = self._clock.monotonic_ns()  # when a node was last known to lead
        while True:
            if self._node.leader:
                led_ns = self._clock.monotonic_ns()
            try:
                return await attempt(last_ns)
            except (errors.OutcomeUnknown, errors.ConnectionLost):
                may_be_done = True
            except (errors.NotReady, errors.ShuttingDown):
                pass  # nobody has taken it
            except errors.IcestreamError:
                if not may_be_done:
                    raise
            now_ns = self._clock.monotonic_ns()
            is_leaderless = now_ns - led_ns >= int(limits.METADATA_LEADERLESS_SECONDS_MAX * 1e9)
            if now_ns >= last_ns or (is_leaderless and not self._node.leader):
                raise _given_up(may_be_done=may_be_done)
            await self._until_led(may_be_done=may_be_done)

    async def _until_led(self, *, may_be_done: bool) -> None:
        """Waits for a change of leader, or for a moment."""
        try:
            await self._node.until(lambda: bool(self._node.leader), limits.METADATA_TICK_SECONDS)
        except errors.IcestreamError as stopped:
            if may_be_done:
                raise _unknown(stopped.message) from stopped
            raise
        await self._clock.sleep(limits.METADATA_FORWARD_RETRY_SECONDS)

    async def _try(self, command: cmd.Command, client: bytes, sequence: int, last_ns: int) -> cmd.Answer:
        if self._node.leads:
            return await self._ways.propose(command, client, sequence)
        envelope = cmd.Envelope(cmd.VERSION, client, sequence, 0, command)
        answer = await self._ways.forward(self._other_leader(), cmd.encode_envelope(envelope))
        if isinstance(answer, cmd.Done):
            await self._until_here(answer.revision, last_ns)
        return answer

    async def _until_here(self, revision: int, last_ns: int) -> None:
        """Waits until the local state has applied what the leader confirmed."""
        node, now_ns = self._node, self._clock.monotonic_ns
        try:
            await node.until(lambda: node.machine.revision >= revision or now_ns() >= last_ns)
        except errors.IcestreamError as stopped:
            raise _unknown(stopped.message) from stopped
        if node.machine.revision < revision:
            raise _unknown("the leader has done it, and this node did not hear of it in time")

    async def _try_renewal(self, key: str, revision: int, last_ns: int) -> bool:
        if self._node.leads:
            return await self._ways.renew_here(key, revision)
        return await self._ways.forward_renewal(self._other_leader(), key, revision)

    def _other_leader(self) -> int:
        if not self._node.leader or self._node.leader == self._node.id:
            raise errors.NotReady("the cluster has no leader", hint="the call is retried automatically")
        return self._node.leader


def _given_up(*, may_be_done: bool) -> errors.IcestreamError:
    if may_be_done:
        return _unknown("no leader confirmed it in time")
    return errors.NotReady("the cluster has no leader", hint="most of the voters must be up and reach each other")


def _unknown(why: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(why, hint=UNKNOWN_HINT)
