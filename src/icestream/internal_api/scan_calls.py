"""The lake process serves scan requests of the broker (broker/scan_requests.py): calls of the local socket.

    method         arguments                        result
    scan_serve                                      handle; then EVENT frames with that number
    scan_answer    number, part, is_last            {}. A part of the response, as bytes of model/scan_messages.py
    scan_failed    number, code, message, hint      {}. The error of the request instead of a response

EVENT of the handle   {event: "asked", asked: […]}   a scan request (model/scan_messages.py)
                      {event: "dropped", number}     the request was cancelled
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors
from icestream.broker.scan_requests import ScanRequests
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.rpc import document, frame
from icestream.rpc.frame import FrameKind

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

SCAN_METHODS: Final = ("scan_serve", "scan_answer", "scan_failed")


class ScanAnswer(msgspec.Struct):
    number: int
    part: bytes
    is_last: bool = True


class ScanFailure(msgspec.Struct):
    number: int
    code: str
    message: str
    hint: str = ""


class ScanCalls:
    """`scan_requests` is None for a broker without tables. Its methods are those of SCAN_METHODS."""

    def __init__(self, scan_requests: ScanRequests | None) -> None:
        self._requests = scan_requests

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in SCAN_METHODS}

    @property
    def _scan_requests(self) -> ScanRequests:
        if self._requests is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory and has no tables", hint="set `storage.type: iceberg`"
            )
        return self._requests

    async def scan_serve(self, caller: Caller, arguments: Document) -> Document:
        connection = caller.connection
        handle = connection.new_handle()
        task = asyncio.get_running_loop().create_task(_send_requests(connection, handle, self._scan_requests))
        connection.watches[handle] = task  # cancelled when the connection is lost
        return {"handle": handle}

    async def scan_answer(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ScanAnswer, arguments)
        self._scan_requests.accept_part(request.number, request.part, request.is_last)
        return {}

    async def scan_failed(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ScanFailure, arguments)
        kind = errors.BY_CODE.get(request.code, errors.PersistentStorageError)
        self._scan_requests.fail(request.number, kind(request.message, hint=request.hint))
        return {}


async def _send_requests(connection: NativeConnection, handle: int, scan_requests: ScanRequests) -> None:
    """Begins in the next loop tick, so that the response with the handle is sent first."""

    def send_event(event: dict[str, Any]) -> None:
        connection.out.send(frame.encode_frame(FrameKind.EVENT, handle, document.encode(event)))

    scan_requests.attach_worker(send_event)
    try:
        await connection.lost.wait()
    finally:
        scan_requests.detach_worker(send_event)
