"""A server of Iceberg's REST protocol as a `TableCatalog`: another catalog, or our own from another process.

Optional features of a server (commits to several tables, Idempotency-Key) are used if its /v1/config lists them.
Listings follow their pages.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from icestream import errors
from icestream.catalogs.commit_recognition import matches_creation
from icestream.catalogs.commit_resolution import CommitResolver, resolve_change
from icestream.catalogs.multi_table_commit import MultiTableCommit
from icestream.catalogs.rest_client import RestClient
from icestream.catalogs.rest_response import Expected, decode_response
from icestream.catalogs.sequential_commits import commit_sequentially
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import CommitDone, CommitOutcome, LoadedTable, TableChange
from icestream.iceberg.identifier import SEPARATOR, Identifier, Namespace
from icestream.iceberg.updates import KEEP_REFERENCED, without_referenced
from icestream.iceberg.values import Object
from icestream.runtime.randomness import Randomness

_TRANSACTIONS: Final = "POST /v1/{prefix}/transactions/commit"
_REGISTER: Final = "POST /v1/{prefix}/namespaces/{namespace}/register"
_RENAME: Final = "POST /v1/{prefix}/tables/rename"
_PAGES_MAX: Final = 10_000
_NAMESPACE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.NotEmpty}
_NEW_NAMESPACE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.AlreadyExists}
_TABLE: Final[Expected] = {404: errors.UnknownTable, 409: errors.CommitConflict}
_NEW_TABLE: Final[Expected] = {404: errors.UnknownNamespace, 409: errors.AlreadyExists}


class RestCatalog:
    """A `TableCatalog` over HTTP. Its configuration is requested with the first call."""

    def __init__(
        self, client: RestClient, caller: StorageCaller, randomness: Randomness, warehouse: str | None, is_own: bool
    ):
        """`is_own`: it is the embedded catalog of one of our nodes."""
        self._client = client
        self._caller = caller
        self._randomness = randomness
        self._warehouse = warehouse
        self._is_own = is_own
        self._config: Object | None = None
        self._config_lock = asyncio.Lock()

    # --- namespaces ---

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        query = {"parent": SEPARATOR.join(parent)} if parent else {}
        entries = await self._pages("list namespaces", "namespaces", "namespaces", query, _NAMESPACE)
        return [tuple(levels) for levels in entries]

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        response = await self._read(f"load namespace {'.'.join(namespace)}", _namespace_path(namespace), _NAMESPACE)
        return dict(response.get("properties") or {})

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        body = {"namespace": list(namespace), "properties": dict(properties)}
        operation = f"create namespace {'.'.join(namespace)}"

        async def is_done() -> bool:
            return await _exists(self.load_namespace(namespace))

        await self._change(operation, "POST", "namespaces", body, _NEW_NAMESPACE, is_done)

    async def drop_namespace(self, namespace: Namespace) -> None:
        async def is_done() -> bool:
            return not await _exists(self.load_namespace(namespace))

        operation = f"drop namespace {'.'.join(namespace)}"
        await self._change(operation, "DELETE", _namespace_path(namespace), None, _NAMESPACE, is_done)

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        path = f"{_namespace_path(namespace)}/tables"
        entries = await self._pages(f"list tables of {'.'.join(namespace)}", path, "identifiers", {}, _NAMESPACE)
        return [Identifier(tuple(entry["namespace"]), entry["name"]) for entry in entries]

    async def load(self, identifier: Identifier) -> LoadedTable:
        return _loaded(await self._read(f"load {identifier}", _table_path(identifier), _TABLE))

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        """Creates a table. After a lost reply the table is loaded and compared with the definition."""
        body = {"name": identifier.name, **definition}
        loaded: list[LoadedTable] = []

        async def is_done() -> bool:
            try:
                loaded[:] = [await self.load(identifier)]
            except (errors.UnknownTable, errors.UnknownNamespace):
                return False
            return matches_creation(loaded[0].metadata, definition)

        path = f"{_namespace_path(identifier.namespace)}/tables"
        response = await self._change(f"create {identifier}", "POST", path, body, _NEW_TABLE, is_done)
        return loaded[0] if response is None else _loaded(response)

    async def check_registers(self, *, is_renaming: bool = False) -> None:
        """A server that lists its endpoints offers no others."""
        endpoints = (await self._server_config()).get("endpoints")
        missing = [path for path in (_REGISTER, *([_RENAME] if is_renaming else [])) if path not in (endpoints or ())]
        if endpoints and missing:
            raise errors.InvalidInput(
                f"the catalog at {self._client.base} does not {'rename' if missing == [_RENAME] else 'register'} "
                f"tables: its /v1/config does not list `{missing[0]}`",
                hint="restore into a broker with a catalog that does, such as the embedded one",
            )

    async def register(self, identifier: Identifier, metadata_location: str) -> LoadedTable:
        """Registers a table. After a lost reply the table is loaded, and is the one if it has this metadata file.

        Raises UnexpectedAnswer if the server then has another table under the name: SeaweedFS 4 gives a registered one
        a new UUID and no columns with every load.
        """
        await self.check_registers()
        body = {"name": identifier.name, "metadata-location": metadata_location}
        loaded: list[LoadedTable] = []

        async def is_done() -> bool:
            try:
                loaded[:] = [await self.load(identifier)]
            except (errors.UnknownTable, errors.UnknownNamespace):
                return False
            return loaded[0].metadata_location == metadata_location

        path = f"{_namespace_path(identifier.namespace)}/register"
        response = await self._change(f"register {identifier}", "POST", path, body, _NEW_TABLE, is_done)
        registered = loaded[0] if response is None else _loaded(response)
        uuid = (await self.load(identifier)).uuid
        if uuid != registered.uuid:
            raise errors.UnexpectedAnswer(
                f"the catalog at {self._client.base} registered {metadata_location} as {identifier}, and then shows "
                f"another table there: UUID {uuid}, not {registered.uuid}",
                hint="it cannot register tables; use another catalog, and remove the name there, without its files",
            )
        return registered

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        async def is_done() -> bool:
            return not await _exists(self.load(identifier))

        query = {"purgeRequested": "true" if is_purging else "false"}
        await self._change(f"drop {identifier}", "DELETE", _table_path(identifier), None, _TABLE, is_done, query)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        async def is_done() -> bool:
            return not await _exists(self.load(source)) and await _exists(self.load(target))

        body = {"source": _identifier_json(source), "destination": _identifier_json(target)}
        expected: Expected = {404: errors.UnknownTable, 409: errors.AlreadyExists}
        await self._change(f"rename {source}", "POST", "tables/rename", body, expected, is_done)

    # --- commits ---

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        change = await self._keeping_referenced(identifier, change)
        operation = f"commit to {identifier}"
        body = {"identifier": _identifier_json(identifier), **_change_json(change)}
        headers = await self._idempotency_key()
        repeated: list[int] = []  # filled by `send`: our own catalog committed this round before, as this snapshot

        async def send() -> LoadedTable:
            response = await self._send("POST", _table_path(identifier), _TABLE, body=body, headers=headers)
            repeated[:] = [snapshot_id for snapshot_id in (response.get("repeated"),) if isinstance(snapshot_id, int)]
            return _loaded(response)

        outcome = await CommitResolver(self._caller, operation, change, send, lambda: self.load(identifier)).resolve()
        if isinstance(outcome, CommitDone) and repeated:
            return CommitDone(outcome.table, outcome.was_read_back, repeated[0])
        return outcome

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        config = await self._server_config()
        # A single commit is resolved by itself also where transactions exist: its response has the table.
        if len(changes) == 1 or _TRANSACTIONS not in (config.get("endpoints") or ()):
            return await commit_sequentially(changes, self.commit)
        changes = {
            identifier: await self._keeping_referenced(identifier, change) for identifier, change in changes.items()
        }
        body = {
            "table-changes": [
                {"identifier": _identifier_json(identifier), **_change_json(change)}
                for identifier, change in changes.items()
            ]
        }
        headers = await self._idempotency_key()

        async def send() -> Object:
            return await self._send("POST", "transactions/commit", _TABLE, body=body, headers=headers)

        return await MultiTableCommit(self._caller, changes, send, self.load).resolve()

    async def _keeping_referenced(self, identifier: Identifier, change: TableChange) -> TableChange:
        """Returns a change that a server of the protocol understands, which removes no snapshot with a branch or tag.

        The references are read right before: a tag that comes between that and the commit is still lost, because no
        requirement of the protocol says that there is none.
        """
        if self._is_own or not any(KEEP_REFERENCED in update for update in change.updates):
            return change
        query = {"snapshots": "refs"}  # of a long history the server sends the referenced snapshots alone
        metadata = _loaded(await self._read(f"load {identifier}", _table_path(identifier), _TABLE, query)).metadata
        removed = {update["ref-name"] for update in change.updates if update["action"] == "remove-snapshot-ref"}
        references = metadata.get("refs") or {}
        referenced_ids = {reference["snapshot-id"] for name, reference in references.items() if name not in removed}
        return TableChange(
            change.requirements, [without_referenced(update, referenced_ids) for update in change.updates]
        )

    async def close(self) -> None:
        await self._client.close()

    # --- requests ---

    async def check(self) -> Object:
        """Returns the server's configuration. Raises the error of a server that cannot be used."""
        return await self._server_config()

    async def _server_config(self) -> Object:
        """Returns the server's configuration, requested once. Raises UnexpectedAnswer for another kind of server."""
        # One request for the configuration, however many calls begin at the same time.
        async with self._config_lock:
            if self._config is None:
                query = {"warehouse": self._warehouse} if self._warehouse is not None else None

                async def get_config() -> Object:
                    return decode_response(await self._client.send("GET", "config", query), {}, self._client.base)

                config = await self._caller.read("read the configuration", get_config)
                if not isinstance(config.get("defaults"), dict) and not isinstance(config.get("overrides"), dict):
                    raise errors.UnexpectedAnswer(
                        f"{self._client.base}/v1/config is not the configuration of an Iceberg catalog",
                        hint="check `uri`",
                    )
                self._config = config
            return self._config

    async def _send(
        self,
        method: str,
        path: str,
        expected: Expected,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """Sends one request with the prefix that the server's configuration asks for. Raises the error of `expected`
        for its status."""
        config = await self._server_config()
        settings = {**(config.get("defaults") or {}), **(config.get("overrides") or {})}
        prefix = str(settings.get("prefix") or "").strip("/")
        response = await self._client.send(method, f"{prefix}/{path}" if prefix else path, query, body, headers)
        return decode_response(response, expected, self._client.base, self._is_own)

    async def _read(
        self, operation: str, path: str, expected: Expected, query: Mapping[str, str] | None = None
    ) -> Object:
        await self._server_config()
        return await self._caller.read(operation, lambda: self._send("GET", path, expected, query))

    async def _pages(
        self, operation: str, path: str, items: str, query: Mapping[str, str], expected: Expected
    ) -> list[Any]:
        """Returns the items of all pages of a listing."""
        entries: list[Any] = []
        next_page: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            page = await self._read(operation, path, expected, {**query, **next_page})
            entries += page.get(items) or []
            token = page.get("next-page-token")
            if not token:
                return entries
            next_page = {"pageToken": str(token)}
        raise errors.UnexpectedAnswer(f"{operation}: more than {_PAGES_MAX} pages")

    async def _change(
        self,
        operation: str,
        method: str,
        path: str,
        body: Any,
        expected: Expected,
        is_done: Callable[[], Awaitable[bool]],
        query: Mapping[str, str] | None = None,
    ) -> Object | None:
        """Sends a change other than a commit. Returns the response; None if the reply was lost and `is_done` is
        true."""
        headers = await self._idempotency_key()
        return await resolve_change(
            self._caller, operation, lambda: self._send(method, path, expected, query, body, headers), is_done
        )

    async def _idempotency_key(self) -> dict[str, str]:
        """Returns the header that all copies of one request share, so that the server applies it once; empty if the
        server does not support it."""
        config = await self._server_config()
        if not config.get("idempotency-key-lifetime"):
            return {}
        token = bytearray(self._randomness.token(16))
        # A UUID of version 7, as the protocol asks for: servers can expire keys by the time in them.
        token[:6] = (self._caller.clock.wall_us() // 1000).to_bytes(6, "big")
        token[6], token[8] = 0x70 | token[6] & 0x0F, 0x80 | token[8] & 0x3F  # UUID of version 7
        return {"Idempotency-Key": str(uuid.UUID(bytes=bytes(token)))}


async def _exists(load: Awaitable[Any]) -> bool:
    try:
        await load
    except (errors.UnknownTable, errors.UnknownNamespace):
        return False
    return True


def _namespace_path(namespace: Namespace) -> str:
    return f"namespaces/{quote(SEPARATOR.join(namespace), safe='')}"


def _table_path(identifier: Identifier) -> str:
    return f"{_namespace_path(identifier.namespace)}/tables/{quote(identifier.name, safe='')}"


def _identifier_json(identifier: Identifier) -> Object:
    return {"namespace": list(identifier.namespace), "name": identifier.name}


def _change_json(change: TableChange) -> Object:
    return {"requirements": list(change.requirements), "updates": list(change.updates)}


def _loaded(response: Object) -> LoadedTable:
    metadata = response.get("metadata")
    if not isinstance(metadata, dict):
        raise errors.StorageUnavailable("response of the catalog lacks the table's metadata", is_ambiguous=True)
    return LoadedTable(metadata, response.get("metadata-location"), response.get("config") or {})
