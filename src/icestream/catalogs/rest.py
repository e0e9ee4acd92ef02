"""Any server of Iceberg's REST protocol as a `TableCatalog`; also our own, from another process.

What a server can do beyond the least (several tables in one request, Idempotency-Key) is used where its /v1/config says
so. Listings follow their pages.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from icestream import errors
from icestream.catalogs import creation_check
from icestream.catalogs.commit_resolution import CommitResolver, resolve_change
from icestream.catalogs.multi_table_commit import MultiTableCommit
from icestream.catalogs.rest_client import RestClient
from icestream.catalogs.rest_response import Expected, decode_response
from icestream.catalogs.sequential_commits import commit_sequentially
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, LoadedTable, TableChange
from icestream.iceberg.identifier import SEPARATOR, Identifier, Namespace
from icestream.iceberg.values import Object
from icestream.runtime.randomness import Randomness

_TRANSACTIONS: Final = "POST /v1/{prefix}/transactions/commit"
_PAGES_MAX: Final = 10_000
_NAMESPACE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.NotEmpty}
_NEW_NAMESPACE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.AlreadyExists}
_TABLE: Final[Expected] = {404: errors.UnknownTable, 409: errors.CommitConflict}
_NEW_TABLE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.AlreadyExists}


class RestCatalog:
    def __init__(
        self, client: RestClient, caller: StorageCaller, randomness: Randomness, warehouse: str | None, is_own: bool
    ):
        """`is_own`: it is the catalog inside a node of ours."""
        self._client = client
        self._caller = caller
        self._randomness = randomness
        self._warehouse = warehouse
        self._is_own = is_own
        self._config: Object | None = None
        self._configuring = asyncio.Lock()

    # --- namespaces ---

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        query = {"parent": SEPARATOR.join(parent)} if parent else {}
        entries = await self._pages("list namespaces", "namespaces", "namespaces", query, _NAMESPACE)
        return [tuple(levels) for levels in entries]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        response = await self._read(f"load namespace {'.'.join(namespace)}", _namespace(namespace), _NAMESPACE)
        return dict(response.get("properties") or {})

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        body = {"namespace": list(namespace), "properties": dict(properties)}
        what = f"create namespace {'.'.join(namespace)}"

        async def is_done() -> bool:
            return await _is_there(self.load_namespace(namespace))

        await self._changed(what, "POST", "namespaces", body, _NEW_NAMESPACE, is_done)

    async def drop_namespace(self, namespace: Namespace) -> None:
        async def is_done() -> bool:
            return not await _is_there(self.load_namespace(namespace))

        what = f"drop namespace {'.'.join(namespace)}"
        await self._changed(what, "DELETE", _namespace(namespace), None, _NAMESPACE, is_done)

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        path = f"{_namespace(namespace)}/tables"
        entries = await self._pages(f"list tables of {'.'.join(namespace)}", path, "identifiers", {}, _NAMESPACE)
        return [Identifier(tuple(entry["namespace"]), entry["name"]) for entry in entries]

    async def load(self, identifier: Identifier) -> LoadedTable:
        return _loaded(await self._read(f"load {identifier}", _table(identifier), _TABLE))

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        body = {"name": identifier.name, **definition}
        loaded: list[LoadedTable] = []

        async def is_done() -> bool:
            try:
                loaded[:] = [await self.load(identifier)]
            except (errors.UnknownTable, errors.UnknownNamespace):
                return False
            return creation_check.matches_creation(loaded[0].metadata, definition)

        path = f"{_namespace(identifier.namespace)}/tables"
        response = await self._changed(f"create {identifier}", "POST", path, body, _NEW_TABLE, is_done)
        return loaded[0] if response is None else _loaded(response)

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        async def is_done() -> bool:
            return not await _is_there(self.load(identifier))

        query = {"purgeRequested": "true" if is_purging else "false"}
        await self._changed(f"drop {identifier}", "DELETE", _table(identifier), None, _TABLE, is_done, query)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        async def is_done() -> bool:
            return not await _is_there(self.load(source)) and await _is_there(self.load(target))

        body = {"source": _named(source), "destination": _named(target)}
        expected: Expected = {404: errors.UnknownTable, 409: errors.AlreadyExists}
        await self._changed(f"rename {source}", "POST", "tables/rename", body, expected, is_done)

    # --- commits ---

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        what = f"commit to {identifier}"
        body = {"identifier": _named(identifier), **_changes(change)}
        headers = await self._request_name()
        repeated: list[int] = []

        async def send() -> LoadedTable:
            response = await self._ask("POST", _table(identifier), _TABLE, body=body, headers=headers)
            repeated[:] = [snapshot_id for snapshot_id in (response.get("repeated"),) if isinstance(snapshot_id, int)]
            return _loaded(response)

        outcome = await CommitResolver(self._caller, what, change, send, lambda: self.load(identifier)).settle()
        if isinstance(outcome, CommitDone) and repeated:
            return CommitDone(outcome.table, outcome.was_read_back, repeated[0])
        return outcome

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        config = await self._connected()
        if len(changes) == 1 or _TRANSACTIONS not in (config.get("endpoints") or ()):
            return await commit_sequentially(changes, self.commit)
        body = {
            "table-changes": [
                {"identifier": _named(identifier), **_changes(change)} for identifier, change in changes.items()
            ]
        }
        headers = await self._request_name()

        async def send() -> Object:
            return await self._ask("POST", "transactions/commit", _TABLE, body=body, headers=headers)

        return await MultiTableCommit(self._caller, changes, send, self.load).settle()

    async def close(self) -> None:
        await self._client.close()

    # --- asking ---

    async def check(self) -> Object:
        """What the server says of itself; raises what is wrong with it or with how it is asked."""
        return await self._connected()

    async def _connected(self) -> Object:
        async with self._configuring:
            if self._config is None:
                query = {"warehouse": self._warehouse} if self._warehouse is not None else None

                async def ask() -> Object:
                    return decode_response(await self._client.ask("GET", "config", query), {}, self._client.base)

                config = await self._caller.read("read the configuration", ask)
                if not isinstance(config.get("defaults"), dict) and not isinstance(config.get("overrides"), dict):
                    raise errors.UnexpectedAnswer(
                        f"{self._client.base}/v1/config is not that of an Iceberg catalog", hint="check `uri`"
                    )
                self._config = config
            return self._config

    async def _ask(
        self,
        method: str,
        path: str,
        expected: Expected,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        config = await self._connected()
        settings = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}
        prefix = str(settings.get("prefix") or "").strip("/")
        response = await self._client.ask(method, f"{prefix}/{path}" if prefix else path, query, body, headers)
        return decode_response(response, expected, self._client.base, self._is_own)

    async def _read(self, what: str, path: str, expected: Expected, query: Mapping[str, str] | None = None) -> Object:
        await self._connected()
        return await self._caller.read(what, lambda: self._ask("GET", path, expected, query))

    async def _pages(self, what: str, path: str, items: str, query: Mapping[str, str], expected: Expected) -> list[Any]:
        entries: list[Any] = []
        next_page: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            page = await self._read(what, path, expected, {**query, **next_page})
            entries += page.get(items) or []
            token = page.get("next-page-token")
            if not token:
                return entries
            next_page = {"pageToken": str(token)}
        raise errors.UnexpectedAnswer(f"{what}: more than {_PAGES_MAX} pages")

    async def _changed(
        self,
        what: str,
        method: str,
        path: str,
        body: Any,
        expected: Expected,
        is_done: Callable[[], Awaitable[bool]],
        query: Mapping[str, str] | None = None,
    ) -> Object | None:
        """The answer; None where it was lost and the catalog says that it is done."""
        headers = await self._request_name()
        return await resolve_change(
            self._caller, what, lambda: self._ask(method, path, expected, query, body, headers), is_done
        )

    async def _request_name(self) -> dict[str, str]:
        """The same for all copies of one request: a server that knows it carries it out once."""
        config = await self._connected()
        if not config.get("idempotency-key-lifetime"):
            return {}
        token = bytearray(self._randomness.token(16))
        token[:6] = (self._caller.clock.wall_us() // 1000).to_bytes(6, "big")
        token[6], token[8] = 0x70 | token[6] & 0x0F, 0x80 | token[8] & 0x3F  # UUID of version 7
        return {"Idempotency-Key": str(uuid.UUID(bytes=bytes(token)))}


async def _is_there(load: Awaitable[Any]) -> bool:
    try:
        await load
    except (errors.UnknownTable, errors.UnknownNamespace):
        return False
    return True


def _namespace(namespace: Namespace) -> str:
    return f"namespaces/{quote(SEPARATOR.join(namespace), safe='')}"


def _table(identifier: Identifier) -> str:
    return f"{_namespace(identifier.namespace)}/tables/{quote(identifier.name, safe='')}"


def _named(identifier: Identifier) -> Object:
    return {"namespace": list(identifier.namespace), "name": identifier.name}


def _changes(change: TableChange) -> Object:
    return {"requirements": list(change.requirements), "updates": list(change.updates)}


def _loaded(response: Object) -> LoadedTable:
    metadata = response.get("metadata")
    if not isinstance(metadata, dict):
        raise errors.StorageUnavailable("an answer without the table's metadata", is_ambiguous=True)
    return LoadedTable(metadata, response.get("metadata-location"), response.get("config") or {})
