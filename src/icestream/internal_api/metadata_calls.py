"""The metadata store for other processes of this node: methods of a CALL that only the local socket offers.

    method               arguments               result
    metadata_get         key                     entry: [value, created, changed, version, deadline ms,
                                                 lease ms], or nil
    metadata_list        prefix, after, limit    entries: [[key, entry], …], more: the page was cut
    metadata_submit      envelope                answer; both as bytes of metadata/command.py. The time in the envelope
                                                 is not looked at: who leads stamps it
    metadata_renew       key, revision           held: whether the lease put at that revision is still there, and kept
    metadata_revision                            revision
    metadata_watch       prefix, after           handle; then EVENT frames of that number
    metadata_unwatch     handle

EVENT of a watch    {event: "changes", revision, changes: [[key, value or nil], …]}
                    {event: "resync", revision}       changes were missed, or were too many for a frame: read again
                    {event: "ended", code, message}   the last one
A watch sends while the socket takes it. A slow one costs no memory: the store keeps a bounded number of changes, and
whoever falls behind them is told to read again (metadata/watch.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.frontends.native.public_calls import Call, Document, arguments_of
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.watch import Changes, Resync
from icestream.rpc import document, frame
from icestream.rpc.frame import Kind

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

_ENTRY_OVERHEAD_BYTES: Final = 64


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


async def metadata_get(connection: NativeConnection, given: Document) -> Document:
    return {"entry": await connection.broker.store.get(arguments_of(MetadataGet, given).key)}


async def metadata_list(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(MetadataList, given)
    found = await connection.broker.store.list(asked.prefix, asked.after, asked.limit)
    page = _cut(found)
    return {"entries": page, "more": len(page) < len(found)}


def _cut(found: list[tuple[str, Entry]]) -> list[tuple[str, Entry]]:
    """As many as fit one answer, at least one."""
    size = 0
    for number, (key, entry) in enumerate(found):
        size += 4 * len(key) + len(entry.value) + _ENTRY_OVERHEAD_BYTES
        if number and size > limits.METADATA_ANSWER_BYTES_MAX:
            return found[:number]
    return found


async def metadata_submit(connection: NativeConnection, given: Document) -> Document:
    asked = cmd.decode_envelope(arguments_of(MetadataSubmit, given).envelope)
    answer = await connection.broker.store.submit(asked.command, asked.client, asked.sequence)
    return {"answer": msgspec.msgpack.encode(answer)}


async def metadata_renew(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(MetadataRenew, given)
    return {"held": await connection.broker.store.renew(asked.key, asked.revision)}


async def metadata_revision(connection: NativeConnection, given: Document) -> Document:
    return {"revision": await connection.broker.store.revision()}


async def metadata_watch(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(MetadataWatch, given)
    if len(connection.watches) >= limits.METADATA_WATCHES_MAX:
        raise errors.Refused(f"this connection has {len(connection.watches)} watches", hint="end one of them")
    changes = connection.broker.store.watch(asked.prefix, asked.after)
    handle = connection.new_handle()
    connection.watches[handle] = asyncio.get_running_loop().create_task(_tell(connection, handle, changes))
    return {"handle": handle}


async def metadata_unwatch(connection: NativeConnection, given: Document) -> Document:
    watching = connection.watches.pop(arguments_of(MetadataUnwatch, given).handle, None)
    if watching is not None:
        watching.cancel()
    return {}


async def _tell(connection: NativeConnection, handle: int, changes: AsyncIterator[Changes | Resync]) -> None:
    """Begins in the next turn of the loop, so the answer with the handle goes first."""
    try:
        async for change in changes:
            connection.out.send(frame.encode_frame(Kind.EVENT, handle, encode_change(change)))
            await asyncio.sleep(0)  # what was sent is written at the end of the tick: only then it is known to be full
            await connection.out.can_write.wait()
    except errors.IcestreamError as error:
        connection.watches.pop(handle, None)
        ended = {"event": "ended", "code": error.code, "message": error.message}
        connection.out.send(frame.encode_frame(Kind.EVENT, handle, document.encode(ended)))


def encode_change(change: Changes | Resync) -> bytes:
    if isinstance(change, Changes):
        pairs: list[tuple[str, Any]] = [(event.key, event.value) for event in change.events]
        size = sum(4 * len(key) + len(value or b"") + _ENTRY_OVERHEAD_BYTES for key, value in pairs)
        if size <= limits.METADATA_ANSWER_BYTES_MAX:
            return document.encode({"event": "changes", "revision": change.revision, "changes": pairs})
    return document.encode({"event": "resync", "revision": change.revision})


_CALLS: Final = (
    metadata_get, metadata_list, metadata_submit, metadata_renew, metadata_revision, metadata_watch, metadata_unwatch,
)  # fmt: skip
METADATA_CALLS: Final[dict[str, Call]] = {call.__name__: call for call in _CALLS}
