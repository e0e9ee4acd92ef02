"""Requests that name themselves (Idempotency-Key): each is carried out once, and a repeat gets the same answer.

The name is written in the transaction of the request itself, so it is there exactly when the request was done. One that
changes nothing writes its name alone, if what it was judged by is still there: a repeat that comes late would change
something. An error that will not go away by itself is written down too; one that may (5xx) is not, and the next try is
a real one.

    {"digest": SHA-256 of what was asked, "code", "message", "hint"}     it ended with this error
    {"digest", "uuids", "removed"}                                       it was done, and this is what its answer needs

A repeat is answered with the tables or the view as they are now, if they are the same: by UUID.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RequestRecord
from icestream.catalog.mover import LOOK_FIRST
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.iceberg.values import short_repr
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class RequestResult(NamedTuple):
    """What the answer to a repeat needs to know."""

    uuids: Sequence[str] = ()
    removed: Sequence[str] = ()

    def check(self, uuids: Sequence[str]) -> None:
        """Of what is there now. Raises OutcomeUnknown when it is not what the request answered with."""
        if [*uuids] != [*self.uuids]:
            raise errors.OutcomeUnknown("it was done to another table or view of this name", hint=LOOK_FIRST)


EMPTY_RESULT: Final = RequestResult()


class IdempotentRequest:
    """One request: its name, and a digest of what it asks for."""

    def __init__(self, name: str, asked: bytes) -> None:
        if not _UUID.fullmatch(name):
            raise errors.InvalidInput(f"an Idempotency-Key is a UUID, not {short_repr(name)}")
        self.key = catalog_keys.request_key(name)
        self.digest = hashlib.sha256(asked).hexdigest()

    def added_to(self, planned: PlannedTransaction, noted: RequestResult) -> PlannedTransaction:
        """The transaction that is done only if no other of this name was."""
        return planned.with_more([cmd.Absent(self.key)], [self._put(noted)])

    def alone(self, unchanged: Sequence[cmd.Compare], noted: RequestResult) -> PlannedTransaction:
        """For a request that changes nothing as long as this holds. The fence is the change itself."""
        put = self._put(noted)
        return PlannedTransaction(
            [*unchanged, cmd.Absent(self.key)], [put], self.key, 0, lambda now: now is not None, put
        )

    def _put(self, noted: RequestResult) -> cmd.PutWithTtl:
        record = RequestRecord(self.digest, uuids=[*noted.uuids], removed=[*noted.removed])
        return cmd.PutWithTtl(self.key, catalog_records.encode(record), limits.CATALOG_REQUEST_TTL_MS)


class RequestLog:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def done(self, request: IdempotentRequest) -> RequestResult | None:
        """None: it was not. Raises what ended it, if it ended so."""
        entry = await self._store.get(request.key)
        if entry is None:
            return None
        record = catalog_records.decode(RequestRecord, request.key, entry)
        if record.digest != request.digest:
            raise errors.Contradiction("this Idempotency-Key was used for another request", hint="make a new key")
        if record.code:
            raise errors.BY_CODE.get(record.code, errors.InvalidInput)(record.message, hint=record.hint)
        return RequestResult(record.uuids, record.removed)

    async def note_error(self, request: IdempotentRequest, error: errors.IcestreamError) -> None:
        """It ends like this however often it is tried."""
        record = RequestRecord(request.digest, error.code, error.message, error.hint)
        put = cmd.PutWithTtl(request.key, catalog_records.encode(record), limits.CATALOG_REQUEST_TTL_MS)
        try:
            await self._store.txn([cmd.Absent(request.key)], [put])
        except (errors.Refused, errors.OutcomeUnknown):
            return  # then the next try finds out by itself
