"""A broker process with accounts whose tables are in S3, and what its users get for them."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyiceberg.catalog.rest import RestCatalog

from tests.support.catalog_servers import STORE, new_name, s3_flags
from tests.support.lake_run import LakeRun
from tests.support.seaweed import BUCKET, TABLE_ROLE, Seaweed
from tests.support.secured_run import ADMIN, SecuredRun

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
PASSWORD = "another horse battery"  # of every user
DELEGATION = "X-Iceberg-Access-Delegation"
ACCOUNTS = {
    "writer": [("all", "table:/raw/**"), ("describe", "namespace:/raw")],
    "reader": [("read", "table:/raw/clicks")],
}


class StoredTables:
    """Has the tables raw.clicks and raw.clicks2."""

    def __init__(self, secured: SecuredRun, store: Seaweed) -> None:
        self.secured, self.store = secured, store
        for name, grants in ACCOUNTS.items():
            secured.administer("accounts", {"kind": "user", "name": name, "password": PASSWORD})
            for actions, resource in grants:
                grant = {"principal": name, "actions": actions.split(","), "resource": resource}
                secured.administer("grants", grant)
        self._tokens = {name: secured.token(name, PASSWORD) for name in ACCOUNTS}
        self._tokens["admin"] = secured.token("admin", ADMIN)
        self.send("admin", "POST", "/v1/namespaces", {"namespace": ["raw"]})
        with self.catalog("writer", "vended-credentials") as catalog:
            for name in ("clicks", "clicks2"):
                catalog.create_table(f"raw.{name}", ROWS.schema).append(ROWS)

    def catalog(self, name: str, mechanism: str) -> RestCatalog:
        return RestCatalog(
            "ice", **{"uri": self.secured.uri, "token": self._tokens[name], f"header.{DELEGATION}": mechanism}
        )

    def send(self, name: str, method: str, path: str, body: Any = None, delegation: str = "") -> Any:
        headers = {"authorization": f"Bearer {self._tokens[name]}", "content-type": "application/json"}
        raw = None if body is None else json.dumps(body).encode()
        url = f"{self.secured.uri}{path}"
        request = urllib.request.Request(url, raw, {**headers, DELEGATION: delegation}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def loaded(self, name: str, table: str) -> tuple[str, dict[str, str]]:
        """The location of a table, and the keys that a user gets for it."""
        answer = self.send(name, "GET", f"/v1/namespaces/raw/tables/{table}", delegation="vended-credentials")
        return answer["metadata"]["location"].removeprefix(f"s3://{BUCKET}/"), answer["config"]


@contextlib.contextmanager
def stored_tables(store: Seaweed, folder: Path) -> Iterator[StoredTables]:
    flags = [
        *s3_flags(store),
        f"storage.iceberg_config.warehouse=s3://{BUCKET}/{new_name('own')}",
        f"{STORE}.table_role_arn={TABLE_ROLE}",
    ]
    with LakeRun(folder / "data", *(part for flag in flags for part in ("--set", flag))) as run:
        yield StoredTables(SecuredRun(run, folder), store)
