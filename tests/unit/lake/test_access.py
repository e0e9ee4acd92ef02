"""The storage configuration that clients of the catalog get for the files of its tables."""

from __future__ import annotations

import pytest

from icestream.catalogs.store_options import StoreOptions
from tests.support.iceberg import IcebergClient, IcebergWorld
from tests.support.tables import SCHEMA

pytestmark = pytest.mark.asyncio

STORE = StoreOptions(
    kind="s3", region="r", endpoint="http://e", path_style=True, access_key_id="AKIA", secret_access_key="hunter2"
)
TOLD = {
    "s3.endpoint": "http://e",
    "s3.region": "r",
    "client.region": "r",
    "s3.path-style-access": "true",
    "s3.force-virtual-addressing": "false",
}
KEYS = {"s3.access-key-id": "AKIA", "s3.secret-access-key": "hunter2"}
CREDENTIALS = [{"prefix": "s3://lake/warehouse/", "config": TOLD | KEYS}]
ASKING = {"x_iceberg_access_delegation": "remote-signing, Vended-Credentials"}


async def client_of(is_sharing: bool) -> IcebergClient:
    world = IcebergWorld()
    await world.with_one()
    return IcebergClient(world.catalog, store=STORE, is_sharing_keys=is_sharing)


async def test_a_client_gets_the_store_endpoint_as_a_default() -> None:
    """The endpoint is a default: an engine on another machine may need another one, and its own setting counts."""
    config = await (await client_of(False))("GET", "/config")
    assert config["defaults"] == TOLD
    assert config["overrides"] == {}
    assert (await IcebergWorld().client("GET", "/config"))["defaults"] == {}


@pytest.mark.parametrize("is_sharing", [False, True])
async def test_keys_are_vended_only_if_enabled_and_requested(is_sharing: bool) -> None:
    client = await client_of(is_sharing)
    loaded = await client("GET", "/namespaces/ns/tables/t", **ASKING)
    assert loaded["config"] == (TOLD | KEYS if is_sharing else {})
    assert loaded.get("storage-credentials") == (CREDENTIALS if is_sharing else None)
    for headers in ({}, ASKING):  # the protocol has no header for this request, and Java's FileIO sends none
        again = await client("GET", "/namespaces/ns/tables/t/credentials", **headers)
        assert again == {"storage-credentials": CREDENTIALS if is_sharing else []}
    assert (await client.refused("GET", "/namespaces/ns/tables/none/credentials"))[0] == 404
    assert (await client("GET", "/namespaces/ns/tables/t"))["config"] == {}
    other = {"x_iceberg_access_delegation": "remote-signing"}
    assert (await client("GET", "/namespaces/ns/tables/t", **other))["config"] == {}


async def test_keys_are_sent_with_every_reply_for_which_engines_write_files() -> None:
    client = await client_of(True)
    for body in ({"name": "u", "schema": SCHEMA}, {"name": "v", "schema": SCHEMA, "stage-create": True}):
        created = await client("POST", "/namespaces/ns/tables", body, **ASKING)
        assert (created["config"], created["storage-credentials"]) == (TOLD | KEYS, CREDENTIALS)
    location = (await client("GET", "/namespaces/ns/tables/u"))["metadata-location"]
    await client("DELETE", "/namespaces/ns/tables/u")
    body = {"name": "w", "metadata-location": location}
    assert (await client("POST", "/namespaces/ns/register", body, **ASKING))["config"] == TOLD | KEYS


async def test_a_client_with_a_credential_learns_that_tokens_are_not_issued() -> None:
    """In OAuth's own form, and before any token is asked for: the client has none yet."""
    client = IcebergClient(IcebergWorld().catalog, ["0123456789abcdef"])
    answer = await client.ask("POST", "/v1/oauth/tokens", b"grant_type=client_credentials&client_id=a&client_secret=b")
    assert (answer.status, answer.json["error"]) == (400, "unsupported_grant_type")
    assert "lake.token_file" in answer.json["error_description"]
