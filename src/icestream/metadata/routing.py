"""Routes commands and lease renewals to the leader, retries when the leader is lost, and applies a command once.

this node leads         the command is proposed here
another node leads      it is sent there (ClientWrite); the answer is returned when the local state has its revision, so
                        that the caller reads its own write
there is no leader, or  the same command is sent again, with the same client id and sequence number
it was lost meanwhile

refused by the leader (full, too large)     raised, if no earlier attempt can have been executed
no leader for METADATA_LEADERLESS_SECONDS_MAX, or
no answer in METADATA_REMOTE_SECONDS_MAX    OutcomeUnknown if any attempt may have been executed, else NotReady
this node stops, or is closed               the same, at once

An attempt that was sent and not answered may have been executed, and so may one that the leader confirms while the
local state does not have it. From then on every error is reported as OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.client_ids import ClientIds
from icestream.metadata.node import Node
from icestream.metadata.proposals import UNKNOWN_HINT
from icestream.runtime.clock import Clock

Result = TypeVar("Result")


class Forward(Protocol):
    """Sends a command to the leader."""

    async def __call__(self, leader: int, envelope: bytes) -> cmd.Answer:
        """Raises the leader's error, or ConnectionLost."""


class ForwardRenewal(Protocol):
    """Sends a lease renewal to the leader."""

    async def __call__(self, leader: int, key: str, revision: int) -> bool:
        """Raises the leader's error, or ConnectionLost."""


class LeaderAccess(Protocol):
    """Execution on this node and forwarding to another node (node_store.py)."""

    forward: Forward
    forward_renewal: ForwardRenewal

    async def propose(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer: ...

    async def renew_here(self, key: str, revision: int) -> bool: ...


class Routing:
    """Commands of one node on their way to the leader."""

    def __init__(self, node: Node, clock: Clock, token: bytes, access: LeaderAccess) -> None:
        self._node = node
        self._clock = clock
        self._access = access
        self._client_ids = ClientIds(token, limits.METADATA_FORWARDED_COMMANDS_MAX)
        self._renewals = asyncio.Semaphore(limits.METADATA_RENEWALS_MAX)

    async def submit(self, command: cmd.Command, client: bytes, sequence: int) -> cmd.Answer:
        """Executes a command once. Without a client id of the caller it borrows one, so that retries are recognised."""
        if client:
            return await self._retry(partial(self._try, command, client, sequence))
        client_id = await self._client_ids.take()
        try:
            return await self._retry(partial(self._try, command, client_id.client, client_id.sequence))
        finally:
            self._client_ids.release(client_id)

    async def renew(self, key: str, revision: int) -> bool:
        """Renews a lease; False if it is gone."""
        async with self._renewals:
            return await self._retry(partial(self._try_renewal, key, revision))

    async def _retry(self, attempt: Callable[[int], Awaitable[Result]]) -> Result:
        """Runs attempts until one has a result, at most until the deadline, which each attempt is given."""
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
                pass  # it was not executed
            except errors.IcestreamError:
                if not may_be_done:
                    raise
            now_ns = self._clock.monotonic_ns()
            is_leaderless = now_ns - led_ns >= int(limits.METADATA_LEADERLESS_SECONDS_MAX * 1e9)
            if now_ns >= last_ns or (is_leaderless and not self._node.leader):
                raise _no_leader_error(may_be_done=may_be_done)
            await self._wait_for_leader(may_be_done=may_be_done)

    async def _wait_for_leader(self, *, may_be_done: bool) -> None:
        """Waits for a leader, at most one tick, and then a moment: a new leader needs time to become ready."""
        try:
            await self._node.until(lambda: bool(self._node.leader), limits.METADATA_TICK_SECONDS)
        except errors.IcestreamError as stopped:
            if may_be_done:
                raise _unknown_outcome(stopped.message) from stopped
            raise
        await self._clock.sleep(limits.METADATA_FORWARD_RETRY_SECONDS)

    async def _try(self, command: cmd.Command, client: bytes, sequence: int, last_ns: int) -> cmd.Answer:
        """One attempt: proposes here, or forwards to the leader."""
        if self._node.leads:
            return await self._access.propose(command, client, sequence)
        envelope = cmd.Envelope(cmd.VERSION, client, sequence, 0, command)
        answer = await self._access.forward(self._other_leader(), cmd.encode_envelope(envelope))
        if isinstance(answer, cmd.Done):
            await self._wait_applied(answer.revision, last_ns)
        return answer

    async def _wait_applied(self, revision: int, last_ns: int) -> None:
        """Waits until the local state has applied what the leader confirmed."""
        node, now_ns = self._node, self._clock.monotonic_ns
        try:
            await node.until(lambda: node.machine.revision >= revision or now_ns() >= last_ns)
        except errors.IcestreamError as stopped:
            raise _unknown_outcome(stopped.message) from stopped
        if node.machine.revision < revision:
            raise _unknown_outcome("the leader executed it, but this node did not receive the entry in time")

    async def _try_renewal(self, key: str, revision: int, last_ns: int) -> bool:
        if self._node.leads:
            return await self._access.renew_here(key, revision)
        return await self._access.forward_renewal(self._other_leader(), key, revision)

    def _other_leader(self) -> int:
        """The id of the leader. Raises NotReady if there is none."""
        if not self._node.leader or self._node.leader == self._node.id:
            raise errors.NotReady("the cluster has no leader", hint="the call is retried automatically")
        return self._node.leader


def _no_leader_error(*, may_be_done: bool) -> errors.IcestreamError:
    if may_be_done:
        return _unknown_outcome("no leader confirmed it in time")
    return errors.NotReady("the cluster has no leader", hint="most of the voters must be up and reach each other")


def _unknown_outcome(why: str) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(why, hint=UNKNOWN_HINT)
