"""PyIceberg and DuckDB with OAuth2 at a broker with accounts, as a person sets it up."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tests.support.lake_run import LakeRun
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.secured_run import ADMIN, SecuredRun

ALICE = "another horse battery"
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


def test_engines_log_in_and_see_what_is_granted(tmp_path: Path) -> None:
    from pyiceberg import exceptions
    from pyiceberg.catalog.rest import RestCatalog

    with LakeRun(tmp_path / "data") as run:
        broker = SecuredRun(run, tmp_path)
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
