"""Hazard 111: what a client gets opens the files of its table, and nothing else. A real store, real clients.

SeaweedFS assumes roles with session policies, as AWS does. PyIceberg and DuckDB get keys; PyIceberg and plain requests
are signed.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from pyiceberg.utils.concurrent import ExecutorFactory

from icestream import limits
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.seaweed import BUCKET, SECRET, Seaweed
from tests.support.stored_tables import PASSWORD, ROWS, StoredTables, stored_tables


@pytest.fixture(scope="module")
def tables(seaweed_server: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredTables]:
    with stored_tables(seaweed_server, tmp_path_factory.mktemp("secured")) as tables:
        yield tables


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg replaces the signer of its S3 client while other threads use it (docs/object-stores.md)."""
    monkeypatch.setenv("PYICEBERG_MAX_WORKERS", "1")
    monkeypatch.setattr(ExecutorFactory, "_instance", None)


class KeyedStore:
    """The store, with the keys of a table."""

    def __init__(self, config: dict[str, str]) -> None:
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=config["s3.endpoint"],
            region_name=config["client.region"],
            aws_access_key_id=config["s3.access-key-id"],
            aws_secret_access_key=config["s3.secret-access-key"],
            aws_session_token=config["s3.session-token"],
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
        )

    def allows(self, operation: str, **arguments: Any) -> bool:
        try:
            getattr(self._client, operation)(Bucket=BUCKET, **arguments)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
                raise
            return False
        return True


def test_hazard_111_keys_of_a_table_open_its_files_only(tables: StoredTables) -> None:
    own, config = tables.loaded("reader", "clicks")
    neighbour, _ = tables.loaded("writer", "clicks2")
    assert SECRET not in json.dumps(config)
    lifetime = int(config["s3.session-token-expires-at-ms"]) / 1000 - time.time()
    assert lifetime <= limits.VENDED_KEYS_SECONDS + 5
    files = tables.send("reader", "GET", "/v1/namespaces/raw/tables/clicks")["metadata-location"]
    metadata = files.removeprefix(f"s3://{BUCKET}/")
    other = tables.send("writer", "GET", "/v1/namespaces/raw/tables/clicks2")["metadata-location"]
    reader = KeyedStore(config)
    assert reader.allows("get_object", Key=metadata)
    assert not reader.allows("get_object", Key=other.removeprefix(f"s3://{BUCKET}/"))
    assert not reader.allows("put_object", Key=f"{own}/data/f", Body=b"x")
    assert not reader.allows("delete_object", Key=metadata)
    writer = KeyedStore(tables.loaded("writer", "clicks")[1])
    assert writer.allows("put_object", Key=f"{own}/data/f", Body=b"x")
    assert writer.allows("delete_object", Key=f"{own}/data/f")
    for store in (reader, writer):
        for prefix in (own, f"{own}/", "", neighbour):
            assert not store.allows("list_objects_v2", Prefix=prefix)
        for key in (f"{own}2/f", f"{own}", neighbour, f"{neighbour}/data/f", "f", own.rpartition("/")[0] + "/f"):
            assert not store.allows("put_object", Key=key, Body=b"x")
            assert not store.allows("delete_object", Key=key)
        copied = {"Bucket": BUCKET, "Key": other.removeprefix(f"s3://{BUCKET}/")}
        assert not store.allows("copy_object", Key=f"{own}/data/f", CopySource=copied)
        assert not store.allows("get_object_acl", Key=metadata)
        assert not store.allows("get_bucket_policy")


def test_engines_read_and_write_with_keys_of_their_tables(tables: StoredTables) -> None:
    with tables.catalog("writer", "vended-credentials") as catalog:
        table = catalog.create_table("raw.keyed", ROWS.schema)
        table.append(ROWS)
        table.delete("id = 2")
        with catalog.create_table_transaction("raw.staged", ROWS.schema) as transaction:
            transaction.append(ROWS)
        assert sorted(catalog.load_table("raw.keyed").scan().to_arrow()["id"].to_pylist()) == [1, 3]
        assert catalog.load_table("raw.staged").scan().to_arrow().num_rows == 3
    with tables.catalog("reader", "vended-credentials") as catalog:
        clicks = catalog.load_table("raw.clicks")
        assert clicks.scan().to_arrow().num_rows == 3
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            clicks.append(ROWS)
    with duckdb_with_iceberg() as database:
        uri = tables.secured.uri
        database.execute(
            f"CREATE SECRET s (TYPE iceberg, CLIENT_ID 'reader', CLIENT_SECRET '{PASSWORD}', "
            f"OAUTH2_SERVER_URI '{uri}/v1/oauth/tokens')"
        )
        database.execute(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{uri}', SECRET s)")
        assert database.execute("SELECT sum(id) FROM ice.raw.clicks").fetchall() == [(6,)]


@pytest.mark.usefixtures("one_worker")
def test_pyiceberg_reads_and_writes_by_signed_requests(tables: StoredTables) -> None:
    with tables.catalog("writer", "remote-signing") as catalog:
        first = catalog.create_table("raw.signed", ROWS.schema)
        first.append(ROWS)
        with catalog.create_table_transaction("raw.signed2", ROWS.schema) as transaction:
            transaction.append(ROWS)
        first.append(ROWS)  # its requests go to the route of the other table
        first.delete("id = 2")
        assert sorted(first.scan().to_arrow()["id"].to_pylist()) == [1, 1, 3, 3]
        assert catalog.load_table("raw.signed2").scan().to_arrow().num_rows == 3
    with tables.catalog("reader", "remote-signing") as catalog:
        clicks = catalog.load_table("raw.clicks")
        assert clicks.scan().to_arrow().num_rows == 3
        with pytest.raises(Exception, match="Failed to sign request 403"):
            clicks.append(ROWS)


def test_hazard_111_a_signature_is_good_for_its_request_only(tables: StoredTables) -> None:
    own, _ = tables.loaded("writer", "clicks")
    other = tables.send("writer", "GET", "/v1/namespaces/raw/tables/clicks2")["metadata-location"]
    secret = other.removeprefix("s3:/")  # a file that the signature is not for

    def signed(method: str, name: str) -> dict[str, str]:
        uri = f"{tables.store.endpoint}/{BUCKET}/{own}/{name}"
        body = {"method": method, "uri": uri, "region": "us-east-1", "headers": {}}
        answer = tables.send("writer", "POST", "/v1/namespaces/raw/tables/clicks/sign", body)
        return {header: value[0] for header, value in answer["headers"].items()}

    def status(method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> int:
        request = urllib.request.Request(f"{tables.store.endpoint}{path}", body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    path = f"/{BUCKET}/{own}/data/signed.parquet"
    put = signed("PUT", "data/signed.parquet")
    unconditional = {name: value for name, value in put.items() if name != "If-None-Match"}
    assert status("PUT", path, unconditional, b"one") == 403, "the condition is a part of the signature"
    assert status("PUT", path, {**put, "x-amz-copy-source": secret}, b"") == 403
    assert status("PUT", path, put, b"one") == 200
    assert status("PUT", path, put, b"two") == 412, "a file is written once"
    assert status("PUT", secret, put, b"x") == 403
    assert status("DELETE", path, put) == 403
    get = signed("GET", "data/signed.parquet")
    assert status("GET", path, get) == 200
    assert status("GET", secret, get) == 403
    assert status("GET", f"/{BUCKET}/?list-type=2&prefix={own}", get) == 403
    assert status("DELETE", path, signed("DELETE", "data/signed.parquet")) == 204
