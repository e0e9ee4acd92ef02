"""The metadata store of this node as another process of the node sees it: over the broker's local socket.

A write is sent with a client id and a sequence number. If the connection breaks before its answer arrived, it is sent
again, to the same broker or to its successor, and is executed once. Each command in flight has a client id of its own,
because an id has one command at a time. Reads are repeated.

    no link       calls wait for the broker, METADATA_REMOTE_SECONDS_MAX at most; before the first link: NotReady
    no answer     in that time: a write that was sent has an unknown outcome, one that was not is refused
    not ready     reported by the broker for METADATA_LEADERLESS_SECONDS_MAX (no leader): its error is passed on
    link lost     during a write: it may have been executed. From then on a refusal is not believed, because it concerns
                  the repeat only (a full disk is noticed before repeats are recognised); it is retried (hazard 13)

A watch continues behind the last revision that it delivered; missed changes are delivered, or replaced by a Resync.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal, refused_identity
from icestream.metadata.client_ids import ClientIds
from icestream.metadata.entry import Entry
from icestream.metadata.remote_watch import RemoteWatch
from icestream.metadata.store import Entries, MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.rpc.document import Document
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness

Result = TypeVar("Result")
_AWAY: Final = (errors.ConnectionLost, errors.ShuttingDown, errors.NotReady)
_answers: Final = msgspec.msgpack.Decoder(cmd.Answer)


class RemoteStore(MetadataStore):
    """The store of a broker that is reached by a link.

    The caller runs the link keeper and stops it after the store is closed.
    """

    def __init__(self, keeper: LinkKeeper, clock: Clock, randomness: Randomness) -> None:
        self._keeper = keeper
        self._clock = clock
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking: set[asyncio.Timeout] = set()  # calls under way
        self._client_ids = ClientIds(randomness.token(16), limits.METADATA_REMOTE_COMMANDS_MAX)

    async def ready(self) -> None:
        while True:
            await self._unless_closed(self._keeper.wait_connected())
            try:
                await self._unless_closed(self._keeper.call("metadata_revision", {}))
                return
            except (errors.ConnectionLost, errors.Refused):
                await self._clock.sleep(limits.LINK_RETRY_SECONDS_MIN)

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self._check_open()
        rejected = refused_identity(client, sequence) or refusal(command)
        if rejected is not None:
            return rejected
        if client:
            return await self._submit(cmd.Envelope(cmd.VERSION, client, sequence, 0, command))
        client_id = await self._client_ids.take()
        try:
            return await self._submit(cmd.Envelope(cmd.VERSION, client_id.client, client_id.sequence, 0, command))
        finally:
            self._client_ids.release(client_id)

    async def _submit(self, envelope: cmd.Envelope) -> cmd.Answer:
        reply = await self._ask("metadata_submit", {"envelope": cmd.encode_envelope(envelope)}, is_write=True)
        try:
            answer: cmd.Answer = _decoded(_answers.decode, reply.get("answer"))
        except errors.DecodeError as error:
            raise errors.OutcomeUnknown(error.message, hint="read what the command would have changed") from None
        return answer

    async def renew(self, key: str, revision: int) -> bool:
        return bool((await self._ask("metadata_renew", {"key": key, "revision": revision})).get("held"))

    async def get(self, key: str) -> Entry | None:
        entry = (await self._ask("metadata_get", {"key": key})).get("entry")
        return None if entry is None else _decoded(_entry, entry)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        """Fetches a page; the broker truncates a page that is too large for a reply, and the rest is fetched then."""
        remaining = min(limit, limits.METADATA_LIST_MAX)
        page: Entries = []
        while True:
            reply = await self._ask("metadata_list", {"prefix": prefix, "after": after, "limit": remaining - len(page)})
            page += _decoded(_entries, reply.get("entries"))
            if not reply.get("more") or len(page) >= remaining:
                return page
            after = page[-1][0]

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        self._check_open()
        return RemoteWatch(self._keeper, self._clock, self._unless_closed, prefix, after)

    async def revision(self) -> int:
        return int((await self._ask("metadata_revision", {}))["revision"])

    async def close(self) -> None:
        if not self._closed.done():
            self._closed.set_exception(errors.LogClosed("the metadata store is closed"))
            self._closed.exception()
            for scope in self._asking:
                if not scope.expired():
                    scope.reschedule(0)  # expires now: the call raises LogClosed

    # --- calls ---

    async def _ask(self, method: str, arguments: Document, *, is_write: bool = False) -> Document:
        """Retries while the broker is unreachable, until the deadline."""
        self._check_open()
        if not self._keeper.links_opened:
            raise errors.NotReady("the broker was not reached yet", hint="wait until the store is ready")
        was_sent = may_be_done = False
        unready_ns: int | None = None  # when the first attempt was sent that the broker has answered with NotReady
        scope = asyncio.timeout(limits.METADATA_REMOTE_SECONDS_MAX)
        try:
            async with scope:
                self._asking.add(scope)
                while True:
                    if not self._keeper.is_connected:
                        await self._keeper.wait_connected()
                    sent_ns = self._clock.monotonic_ns()
                    try:
                        was_sent = True
                        return await self._keeper.call(method, arguments)
                    except errors.IcestreamError as error:
                        may_be_done |= is_write and isinstance(error, errors.ConnectionLost)
                        if not (may_be_done or isinstance(error, _AWAY)):
                            raise
                        is_unready = isinstance(error, errors.NotReady)
                        unready_ns = (unready_ns or sent_ns) if is_unready else None
                        if is_unready and not may_be_done and self._has_lasted(unready_ns):
                            raise
                    await self._clock.sleep(limits.LINK_RETRY_SECONDS_MIN)
        except TimeoutError:
            if was_sent and is_write:
                raise errors.OutcomeUnknown(
                    "the broker did not answer the write in time", hint="read the keys it would have changed"
                ) from None
            self._check_open()
            raise errors.NotReady("the broker is unreachable", hint="the call is retried automatically") from None
        finally:
            self._asking.discard(scope)

    def _has_lasted(self, since_ns: int | None) -> bool:
        """Whether the broker has been unready for longer than an election takes.

        It has waited for a leader itself, so another attempt would only delay the error.
        """
        if since_ns is None:
            return False
        return self._clock.monotonic_ns() - since_ns >= limits.METADATA_LEADERLESS_SECONDS_MAX * 1e9

    async def _unless_closed(self, coming: Awaitable[Result]) -> Result:
        """Awaits the reply. Raises LogClosed if the store is closed first."""
        task: asyncio.Future[Any] = asyncio.ensure_future(coming)
        either: set[asyncio.Future[Any]] = {task, self._closed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._check_open()
            result: Result = await task
            return result
        finally:
            task.cancel()

    def _check_open(self) -> None:
        if self._closed.done():
            self._closed.result()


def _entry(raw: Any) -> Entry:
    return Entry(*raw)


def _entries(raw: Any) -> Entries:
    return [(key, _entry(entry)) for key, entry in raw]


def _decoded(decode: Callable[[Any], Result], raw: Any) -> Result:
    """Decodes a part of an answer. Raises DecodeError."""
    try:
        return decode(raw)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise errors.DecodeError(f"malformed answer of the metadata store: {error}") from None
