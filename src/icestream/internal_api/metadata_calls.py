"""The metadata store for other processes of this node: calls of the local socket.

    method               arguments               result
    metadata_get         key                     entry: [value, created, changed, version, deadline ms,
                                                 lease ms], or nil
    metadata_list        prefix, after, limit    entries: [[key, entry], …], more: the page was cut
    metadata_submit      envelope                answer; both as bytes of metadata/command.py. The time in the envelope
                                                 is ignored: the leader sets it
    metadata_renew       key, revision           held: whether the lease put at that revision existed and was renewed
    metadata_revision                            revision
    metadata_watch       prefix, after           handle; then EVENT frames of that number
    metadata_unwatch     handle

EVENT of a watch    {event: "changes", revision, changes: [[key, value or nil], …]}
                    {event: "resync", revision}       changes were missed, or too many for a frame: list again
                    {event: "ended", code, message}   the last event
The records of security are not served here: they are left out of listings and watches, and a command that names one of
them is refused, whichever process sends it (hazard 108). Only the broker reads and writes them.

A watch sends only while the socket takes more bytes. A slow client costs no memory: the store keeps a bounded number of
changes, and a watch that falls behind them gets a resync (metadata/watch.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.internal_api.call_gate import check_written_keys
from icestream.metadata import command as cmd
from icestream.metadata.bounds import shown
from icestream.metadata.entry import Entry
from icestream.metadata.store import Entries, MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.rpc import document, frame
from icestream.rpc.frame import FrameKind
from icestream.security.security_records import SECURITY

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

_ENTRY_OVERHEAD_BYTES: Final = 64
_END_OF_SECURITY: Final = SECURITY + "\U0010ffff"  # behind every key below it
METADATA_METHODS: Final = (
    "metadata_get",
    "metadata_list",
    "metadata_submit",
    "metadata_renew",
    "metadata_revision",
    "metadata_watch",
    "metadata_unwatch",
)


class MetadataGet(msgspec.Struct):
    key: str


class MetadataList(msgspec.Struct):
    prefix: str
    after: str = ""
    limit: int = limits.METADATA_LIST_MAX


class MetadataSubmit(msgspec.Struct):
    envelope: bytes


class MetadataRenew(msgspec.Struct):
    key: str
    revision: int


class MetadataWatch(msgspec.Struct):
    prefix: str
    after: int


class MetadataUnwatch(msgspec.Struct):
    handle: int


class MetadataCalls:
    """Its methods are those of METADATA_METHODS."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in METADATA_METHODS}

    async def metadata_get(self, caller: Caller, arguments: Document) -> Document:
        key = decode_arguments(MetadataGet, arguments).key
        _check_served(key)
        return {"entry": await self._store.get(key)}

    async def metadata_list(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(MetadataList, arguments)
        _check_served(request.prefix)
        entries = await _list_served(self._store, request)
        page = _fitting_page(entries)
        return {"entries": page, "more": len(page) < len(entries)}

    async def metadata_submit(self, caller: Caller, arguments: Document) -> Document:
        request = cmd.decode_envelope(decode_arguments(MetadataSubmit, arguments).envelope)
        for key in _named_keys(request.command):
            _check_served(key)
        check_written_keys(caller.session, request.command)
        answer = await self._store.submit(request.command, request.client, request.sequence)
        return {"answer": msgspec.msgpack.encode(answer)}

    async def metadata_renew(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(MetadataRenew, arguments)
        _check_served(request.key)
        check_written_keys(caller.session, cmd.Delete(request.key))  # a renewal writes the lease as a deletion would
        return {"held": await self._store.renew(request.key, request.revision)}

    async def metadata_revision(self, caller: Caller, arguments: Document) -> Document:
        return {"revision": await self._store.revision()}

    async def metadata_watch(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(MetadataWatch, arguments)
        connection = caller.connection
        if len(connection.watches) >= limits.METADATA_WATCHES_MAX:
            raise errors.Refused(
                f"this connection has the maximum of {len(connection.watches)} watches", hint="end one of them"
            )
        _check_served(request.prefix)
        changes = self._store.watch(request.prefix, request.after)
        handle = connection.new_handle()
        connection.watches[handle] = asyncio.get_running_loop().create_task(_send_changes(connection, handle, changes))
        return {"handle": handle}

    async def metadata_unwatch(self, caller: Caller, arguments: Document) -> Document:
        watch = caller.connection.watches.pop(decode_arguments(MetadataUnwatch, arguments).handle, None)
        if watch is not None:
            watch.cancel()
        return {}


async def _list_served(store: MetadataStore, request: MetadataList) -> Entries:
    """A page without the records of security; not empty because of them."""
    after = _END_OF_SECURITY if request.after.startswith(SECURITY) else request.after
    entries = await store.list(request.prefix, after, request.limit)
    served = [entry for entry in entries if not entry[0].startswith(SECURITY)]
    return served or (await store.list(request.prefix, _END_OF_SECURITY, request.limit) if entries else [])


def _fitting_page(entries: list[tuple[str, Entry]]) -> list[tuple[str, Entry]]:
    """The first entries that fit one response, at least one."""
    size = 0
    for number, (key, entry) in enumerate(entries):
        size += 4 * len(key) + len(entry.value) + _ENTRY_OVERHEAD_BYTES
        if number and size > limits.METADATA_ANSWER_BYTES_MAX:
            return entries[:number]
    return entries


async def _send_changes(connection: NativeConnection, handle: int, changes: AsyncIterator[Changes | Resync]) -> None:
    """Begins in the next loop tick, so that the response with the handle is sent first."""
    try:
        async for change in changes:
            served = _served_part(change) if isinstance(change, Changes) else change
            connection.out.send(frame.encode_frame(FrameKind.EVENT, handle, encode_change(served)))
            await asyncio.sleep(0)  # frames are written at the end of the tick; only then is `can_write` up to date
            await connection.out.can_write.wait()
    except errors.IcestreamError as error:
        connection.watches.pop(handle, None)
        ended_event = {"event": "ended", "code": error.code, "message": error.message}
        connection.out.send(frame.encode_frame(FrameKind.EVENT, handle, document.encode(ended_event)))


def _named_keys(command: cmd.Command) -> Iterator[str]:
    """The keys that a command reads or writes; `/security/` for the deletion of a prefix that covers it."""
    match command:
        case cmd.Txn(compare, then, otherwise):
            for part in (*compare, *then, *otherwise):
                yield from [part.key] if isinstance(part, cmd.Compare) else _named_keys(part)
        case cmd.CompareAndSwap(compare):
            yield compare.key
        case cmd.DeletePrefix(prefix):
            yield SECURITY if SECURITY.startswith(prefix) else prefix
        case cmd.ExpireTtlKeys(keys):
            yield from (key for key, _ in keys)
        case cmd.AllocateMonotonicId() | cmd.TakeSnapshot():
            pass
        case _:
            yield command.key


def _check_served(key: str) -> None:
    """Raises PermissionDenied for a key or a prefix of the records of security."""
    if key.startswith(SECURITY):
        raise errors.PermissionDenied(
            f"{shown(key)} belongs to the broker alone",
            hint="`icestream security` shows and changes accounts and grants",
        )


def _served_part(change: Changes) -> Changes:
    """The changes without those of security. A batch of nothing else is sent empty: it moves the revision."""
    if not any(event.key.startswith(SECURITY) for event in change.events):
        return change
    return Changes(change.revision, [event for event in change.events if not event.key.startswith(SECURITY)])


def encode_change(change: Changes | Resync) -> bytes:
    if isinstance(change, Changes):
        pairs: list[tuple[str, Any]] = [(event.key, event.value) for event in change.events]
        size = sum(4 * len(key) + len(value or b"") + _ENTRY_OVERHEAD_BYTES for key, value in pairs)
        if size <= limits.METADATA_ANSWER_BYTES_MAX:
            return document.encode({"event": "changes", "revision": change.revision, "changes": pairs})
    return document.encode({"event": "resync", "revision": change.revision})
