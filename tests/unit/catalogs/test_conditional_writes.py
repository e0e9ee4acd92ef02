"""A store that does not know conditional writes is named as such, at once."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalogs.warehouse_fence import WarehouseFence
from icestream.catalogs.warehouse_fence_record import FenceTerms
from icestream.processes.configured_catalog import open_objects
from tests.support.catalog_servers import STORE, settings_of

pytestmark = pytest.mark.asyncio
REFUSAL = b"<Error><Code>NotImplemented</Code><Message>A header implies functionality that is missing</Message></Error>"


class UnconditionalStore:
    """S3 as a store without conditional writes speaks it: no object is there, and none can be made."""

    def __init__(self) -> None:
        self.writes = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        is_write = head.startswith(b"PUT")
        self.writes += is_write
        status, body = (b"501 Not Implemented", REFUSAL) if is_write else (b"404 Not Found", b"")
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()


async def test_a_store_without_conditional_writes_is_reported_and_not_retried() -> None:
    store = UnconditionalStore()
    server = await asyncio.start_server(store.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    flags = ("type=s3", "bucket=b", f"endpoint=http://127.0.0.1:{port}", "path_style=true")
    keys = ("access_key_id=key", "secret_access_key=secret")
    objects = open_objects(settings_of(*(f"{STORE}.{flag}" for flag in (*flags, *keys))))
    try:
        with pytest.raises(errors.UnexpectedAnswer, match=r"refuses conditional writes \(If-None-Match: \*\)"):
            await objects.put_new("a", b"1")
        fence = WarehouseFence(objects, "s3://b/tables")
        assert not (await fence.check(FenceTerms("a"))).successor, "nothing has to be written"
        with pytest.raises(errors.UnexpectedAnswer, match="refuses conditional writes"):
            await fence.check(FenceTerms("b", ["a"]))
        assert store.writes == 2
    finally:
        server.close()
        await server.wait_closed()
