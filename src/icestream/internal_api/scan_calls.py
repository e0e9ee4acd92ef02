"""Where the lake process gets questions about tables, and brings answers: methods that only the local socket offers.

    method         arguments                        result
    scan_serve                                      handle; then EVENT frames of that number
    scan_answer    number, part, is_last            {}. A part of the answer, as bytes of model/scan.py
    scan_failed    number, code, message, hint      {}. The error that it is instead

EVENT of the handle  {event: "asked", asked: […]}       a question (model/scan.py)
                   {event: "dropped", number}         nobody waits for its answer any more
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors
from icestream.broker.scan_requests import ScanRequests
from icestream.frontends.native.public_calls import Call, Document, arguments_of
from icestream.rpc import document, frame
from icestream.rpc.frame import Kind

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection


class ScanAnswer(msgspec.Struct):
    number: int
    part: bytes
    is_last: bool = True


class ScanFailure(msgspec.Struct):
    number: int
    code: str
    message: str
    hint: str = ""


def _scan_requests(connection: NativeConnection) -> ScanRequests:
    found = connection.broker.storage.scan_requests
    if found is None:
        raise errors.InvalidInput("this broker has no tables", hint="its storage is in memory")
    return found


async def scan_serve(connection: NativeConnection, given: Document) -> Document:
    handle = connection.new_handle()
    task = asyncio.get_running_loop().create_task(_attend(connection, handle, _scan_requests(connection)))
    connection.watches[handle] = task  # ends with the connection
    return {"handle": handle}


async def _attend(connection: NativeConnection, handle: int, scan_requests: ScanRequests) -> None:
    """Begins in the next turn of the loop, so the answer with the handle goes first."""

    def tell(event: dict[str, Any]) -> None:
        connection.out.send(frame.encode_frame(Kind.EVENT, handle, document.encode(event)))

    scan_requests.attach_worker(tell)
    try:
        await connection.lost.wait()
    finally:
        scan_requests.detach_worker(tell)


async def scan_answer(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(ScanAnswer, given)
    _scan_requests(connection).accept_part(asked.number, asked.part, asked.is_last)
    return {}


async def scan_failed(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(ScanFailure, given)
    kind = errors.BY_CODE.get(asked.code, errors.PersistentStorageError)
    _scan_requests(connection).fail(asked.number, kind(asked.message, hint=asked.hint))
    return {}


SCAN_CALLS: Final[dict[str, Call]] = {call.__name__: call for call in (scan_serve, scan_answer, scan_failed)}
