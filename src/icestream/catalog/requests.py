"""Requests that name themselves (Idempotency-Key): each is carried out once, and a repeat gets the same answer.

The name is written in the transaction of the request itself, so it is there exactly when the request was done. An error
that will not go away by itself is written down too; one that may (5xx) is not, and the next try is a real one.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from icestream import errors, limits
from icestream.catalog import keys, records
from icestream.catalog.document.values import shown
from icestream.catalog.plan.planned import Planned
from icestream.catalog.records import RequestRecord
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class RequestName:
    """One request: its name, and a digest of what it asks for."""

    def __init__(self, name: str, asked: bytes) -> None:
        if not _UUID.fullmatch(name):
            raise errors.InvalidInput(f"an Idempotency-Key is a UUID, not {shown(name)}")
        self.key = keys.request_key(name)
        self.digest = hashlib.sha256(asked).hexdigest()

    def added_to(self, planned: Planned) -> Planned:
        """The transaction that is done only if no other of this name was."""
        record = cmd.PutWithTtl(self.key, records.encode(RequestRecord(self.digest)), limits.CATALOG_REQUEST_TTL_MS)
        return planned.with_more([cmd.Absent(self.key)], [record])


class Requests:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def was_done(self, request: RequestName) -> bool:
        """Raises what ended it, if it ended so."""
        entry = await self._store.get(request.key)
        if entry is None:
            return False
        record = records.decode(RequestRecord, request.key, entry)
        if record.digest != request.digest:
            raise errors.Contradiction("this Idempotency-Key was used for another request", hint="make a new key")
        if record.code:
            raise errors.BY_CODE.get(record.code, errors.InvalidInput)(record.message, hint=record.hint)
        return True

    async def note_error(self, request: RequestName, error: errors.IcestreamError) -> None:
        """It ends like this however often it is tried."""
        record = RequestRecord(request.digest, error.code, error.message, error.hint)
        put = cmd.PutWithTtl(request.key, records.encode(record), limits.CATALOG_REQUEST_TTL_MS)
        try:
            await self._store.txn([cmd.Absent(request.key)], [put])
        except (errors.Refused, errors.OutcomeUnknown):
            return  # then the next try finds out by itself
