"""Answers of the local socket that are larger than a document of the protocol: parts of backups and of the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import limits
from icestream.frontends.native.public_calls import Call, Caller
from icestream.metadata.store import MemoryStore
from icestream.rpc.document import Document
from tests.support.local_broker import kept_link, local_broker

pytestmark = pytest.mark.asyncio


class PartCalls:
    """A call that answers with as many bytes as it is asked for."""

    def calls(self) -> dict[str, Call]:
        return {"backup_part": self._part}

    async def _part(self, caller: Caller, arguments: Document) -> Document:
        return {"data": bytes(arguments["size"])}


@pytest.mark.parametrize(
    "size", [limits.BACKUP_PART_BYTES, limits.BACKUP_TAIL_READ_BYTES + 2 * limits.MESSAGE_BYTES_MAX_DEFAULT]
)
async def test_the_largest_parts_of_a_backup_are_answered(tmp_path: Path, size: int) -> None:
    assert size > limits.DOCUMENT_BYTES_MAX
    async with (
        local_broker(tmp_path / "broker.sock", MemoryStore(), more_calls=[PartCalls()]),
        kept_link(tmp_path / "broker.sock") as link,
    ):
        answer = await link.call("backup_part", {"size": size})
    assert answer["data"] == bytes(size)
