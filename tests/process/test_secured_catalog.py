"""PyIceberg and DuckDB with OAuth2 at a broker with accounts, as a person sets it up."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tests.support.lake_run import LakeRun
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.serve_process import COMMAND

ADMIN, ALICE = "correct horse battery", "another horse battery"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


class SecuredBroker:
    """A broker after `security init`, and its administrator over HTTP."""

    def __init__(self, run: LakeRun, folder: Path) -> None:
        run.until_api()
        self.uri = f"http://127.0.0.1:{run.lake_port}"
        password = folder / "admin.password"
        password.touch(0o600)
        password.write_text(ADMIN)
        command = ["security", "init", "admin", "--password-file", str(password), "--broker", str(folder / "data")]
        subprocess.run([*COMMAND, *command], check=True, capture_output=True)

    def token(self, name: str, password: str) -> str:
        form = {"grant_type": "client_credentials", "client_id": name, "client_secret": password}
        with urllib.request.urlopen(f"{self.uri}/v1/oauth/tokens", urlencode(form).encode(), timeout=30) as answer:
            return str(json.load(answer)["access_token"])

    def client(self, credential: str) -> dict[str, str]:
        """The settings of PyIceberg."""
        return {"uri": self.uri, "credential": credential, "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens"}

    def administer(self, path: str, body: Any) -> None:
        headers = {"authorization": f"Bearer {self.token('admin', ADMIN)}", "content-type": "application/json"}
        url = f"{self.uri}/api/v1/security/{path}"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30).close()


def test_engines_log_in_and_see_what_is_granted(tmp_path: Path) -> None:
    from pyiceberg import exceptions
    from pyiceberg.catalog.rest import RestCatalog

    with LakeRun(tmp_path / "data") as run:
        broker = SecuredBroker(run, tmp_path)
        with RestCatalog("ice", **broker.client(f"admin:{ADMIN}")) as admin:
            admin.create_namespace("raw")
            admin.create_table("raw.clicks", ROWS.schema).append(ROWS)
            admin.create_table("raw.secret", ROWS.schema)
        broker.administer("accounts", {"kind": "user", "name": "alice", "password": ALICE})
        broker.administer("grants", {"principal": "alice", "actions": ["read"], "resource": "table:/raw/clicks"})

        with RestCatalog("ice", **broker.client(f"alice:{ALICE}")) as alice:
            assert alice.list_tables("raw") == [("raw", "clicks")]
            clicks = alice.load_table("raw.clicks")
            assert clicks.scan().to_arrow().num_rows == 3
            with pytest.raises(exceptions.NoSuchTableError):
                alice.load_table("raw.secret")
            with pytest.raises(exceptions.ForbiddenError, match="may not table-write"):
                clicks.append(ROWS)
        with pytest.raises(exceptions.OAuthError, match="the credential is not valid"):
            RestCatalog("ice", **broker.client("alice:wrong"))

        with duckdb_with_iceberg() as duckdb:
            duckdb.execute(
                f"CREATE SECRET s (TYPE iceberg, CLIENT_ID 'alice', CLIENT_SECRET '{ALICE}', "
                f"OAUTH2_SERVER_URI '{broker.uri}/v1/oauth/tokens')"
            )
            duckdb.execute(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{broker.uri}', SECRET s)")
            assert duckdb.execute("SELECT count(*) FROM ice.raw.clicks").fetchall() == [(3,)]
            with pytest.raises(Exception, match="secret does not exist"):
                duckdb.execute("SELECT count(*) FROM ice.raw.secret")
