"""The embedded catalog through its HTTP face, over a simulated warehouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from icestream.catalog.catalog import Catalog
from icestream.catalog.tokens import Tokens
from icestream.catalogs.store_options import StoreOptions
from icestream.lake.iceberg.access import Access
from icestream.lake.iceberg.app import IcebergApp
from icestream.lake.iceberg.backup_view import ReadableBackups
from icestream.lake.request_metrics import RequestMetrics
from tests.support.asgi import AsgiClient, AsgiResponse
from tests.support.tables import SCHEMA
from tests.support.warehouse import CatalogWorld


class IcebergClient:
    """A client of Iceberg's REST protocol; returns or checks its answers."""

    def __init__(
        self,
        catalog: Catalog | None,
        tokens: Sequence[str] = (),
        store: StoreOptions | None = None,
        backups: ReadableBackups | None = None,
        **sharing: bool,
    ) -> None:
        """`store`: where the files of its tables are said to be. `backups`: those that views show."""
        self.counted = RequestMetrics()
        roots = () if store is None else ("s3://lake/warehouse",)
        access = Access.of(store or StoreOptions(), **{"is_sharing_keys": False, **sharing}, roots=roots)
        app = IcebergApp(catalog, Tokens(tokens), self.counted, "127.0.0.1", access, backups=backups)
        self.ask = AsgiClient(app)

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a request that must succeed."""
        answer = await self.sent(method, path, body, **headers)
        assert answer.status in (200, 204), (answer.status, answer.body)
        return answer.json if answer.body else None

    async def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, str]:
        """Status, type and words of one that must not, in the one form of Iceberg's errors."""
        answer = await self.sent(method, path, body, **headers)
        return error_of(answer)

    async def sent(self, method: str, path: str, body: Any = None, **headers: str) -> AsgiResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask(method, f"/v1{path}", body, named)


def error_of(answer: AsgiResponse) -> tuple[int, str, str]:
    assert answer.headers["content-type"] == "application/json"
    error: Mapping[str, Any] = answer.json["error"]
    assert error["code"] == answer.status >= 400, answer
    return error["code"], error["type"], error["message"]


def path_of(*levels: str) -> str:
    return "/namespaces/" + "%1F".join(quote(level, safe="") for level in levels)


class IcebergWorld(CatalogWorld):
    """With one namespace and one table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.client = IcebergClient(self.catalog)

    async def with_one(self, **request: Any) -> IcebergClient:
        await self.client("POST", "/namespaces", {"namespace": ["ns"]})
        await self.client("POST", "/namespaces/ns/tables", {"name": "t", "schema": SCHEMA, **request})
        return self.client


def commit_of(updates: Sequence[Any], *requirements: Any) -> dict[str, Any]:
    return {"requirements": [*requirements], "updates": [*updates]}


def set_properties(**properties: str) -> dict[str, Any]:
    return commit_of([{"action": "set-properties", "updates": properties}])
