"""Requests with an Idempotency-Key: each is applied once, and a repeat gets the same answer.

The result is recorded in the transaction of the request itself, so it exists exactly if the request was applied. A
request that changes nothing records its result alone, provided that what it was judged by is unchanged: a late repeat
would otherwise change something. An error that every retry would meet is recorded, too; a temporary one (5xx) is not,
and the next attempt runs.

    {"digest": SHA-256 of the request, "code", "message", "hint"}     the request failed with this error
    {"digest", "uuids", "removed"}                                    it was applied; what the answer to a repeat needs

A repeat is answered with the tables or the view as they are now, if they are the same ones (by UUID).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RequestRecord
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.iceberg.values import short_repr
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore

RELOAD_HINT: Final = "reload the table, view or namespace before retrying"
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)


class RequestResult(NamedTuple):
    """The recorded result of a request: what the answer to a repeat needs."""

    uuids: Sequence[str] = ()
    removed: Sequence[str] = ()

    def check(self, uuids: Sequence[str]) -> None:
        """`uuids`: of what has the name now. Raises OutcomeUnknown if the request was answered with others."""
        if [*uuids] != [*self.uuids]:
            raise errors.OutcomeUnknown(
                "the request was applied, but another table or view has the name now", hint=RELOAD_HINT
            )


EMPTY_RESULT: Final = RequestResult()


class IdempotentRequest:
    """The Idempotency-Key of a request, and the digest of its content."""

    def __init__(self, key: str, content: bytes, owner: str = "") -> None:
        """`owner`: the principal that sent it; empty while security is off. Keys of two principals are two keys: the
        result of a request is only for the principal that made it (hazard 110)."""
        if not _UUID.fullmatch(key):
            raise errors.InvalidInput(f"Idempotency-Key is not a UUID: {short_repr(key)}")
        prefix = f"{hashlib.sha256(owner.encode()).hexdigest()[:32]}-" if owner else ""
        self.key = catalog_keys.request_key(prefix + key)
        self.digest = hashlib.sha256(content).hexdigest()

    def added_to(self, transaction: PlannedTransaction, result: RequestResult) -> PlannedTransaction:
        """Returns the transaction, applied only if no other request with this key was, and recording the result."""
        return transaction.with_more([cmd.Absent(self.key)], [self._put(result)])

    def alone(self, unchanged: Sequence[cmd.Compare], result: RequestResult) -> PlannedTransaction:
        """Records the result of a request that changes nothing while `unchanged` holds. It is its own fence."""
        put = self._put(result)
        return PlannedTransaction(
            [*unchanged, cmd.Absent(self.key)], [put], self.key, 0, lambda entry: entry is not None, put
        )

    def _put(self, result: RequestResult) -> cmd.PutWithTtl:
        record = RequestRecord(self.digest, uuids=[*result.uuids], removed=[*result.removed])
        return cmd.PutWithTtl(self.key, catalog_records.encode(record), limits.CATALOG_REQUEST_TTL_MS)


class RequestLog:
    """The recorded results of requests."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def find(self, request: IdempotentRequest) -> RequestResult | None:
        """Returns the recorded result of this request, None if it never completed. Raises the recorded error, and
        Contradiction if the key was used for a request with another content."""
        entry = await self._store.get(request.key)
        if entry is None:
            return None
        record = catalog_records.decode(RequestRecord, request.key, entry)
        # A key that is used for two requests is an error of the client; answering with the result of the other would
        # hide it.
        if record.digest != request.digest:
            raise errors.Contradiction(
                "this Idempotency-Key was used for another request", hint="generate a new key for each request"
            )
        if record.code:
            raise errors.BY_CODE.get(record.code, errors.InvalidInput)(record.message, hint=record.hint)
        return RequestResult(record.uuids, record.removed)

    async def record_error(self, request: IdempotentRequest, error: errors.IcestreamError) -> None:
        """Records an error that every retry of the request would end with."""
        record = RequestRecord(request.digest, error.code, error.message, error.hint)
        put = cmd.PutWithTtl(request.key, catalog_records.encode(record), limits.CATALOG_REQUEST_TTL_MS)
        try:
            await self._store.txn([cmd.Absent(request.key)], [put])
        except (errors.Refused, errors.OutcomeUnknown):
            return  # not recorded: a repeat meets the same error again
