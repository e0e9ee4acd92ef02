"""Access to the files of tables on a broker with accounts: keys for one table, and signed requests (hazard 111)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from icestream.catalogs.store_options import StoreOptions
from icestream.iceberg.identifier import Identifier
from icestream.lake.iceberg.access import Access
from tests.support.asgi import AsgiResponse
from tests.support.secured_lake import ORDERS, PLAIN, SecuredLake, secured_lake
from tests.support.signed_store import ENDPOINT, S3_WAREHOUSE, RecordingRole, file_uri, signing_access, to_sign
from tests.support.tables import SCHEMA

pytestmark = pytest.mark.asyncio
T, TOPIC_TABLE = "/v1/namespaces/ns/tables/t", "/v1/namespaces/shop/tables/orders"
READER, WRITER = ["table-read on table:/ns/t"], ["table-read,table-write on table:/ns/t"]
TOPIC_WRITER = ["table-read,table-write on /shop/orders"]
KEYS, SIGNING = "vended-credentials", "remote-signing"
GET, ALL = ["s3:GetObject"], ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


async def location_of(lake: SecuredLake, table: Identifier = PLAIN) -> str:
    return (await lake.catalog.tables.load(table)).table.location


async def loaded(lake: SecuredLake, path: str, delegation: str, name: str = "alice") -> dict[str, str]:
    answer = await lake.as_(name, "GET", path, x_iceberg_access_delegation=delegation)
    assert answer.status == 200, answer
    config: dict[str, str] = answer.json["config"]
    return config


async def signed(
    lake: SecuredLake, method: str, uri: str, path: str = T, name: str = "alice", headers: dict[str, str] | None = None
) -> AsgiResponse:
    return await lake.as_(name, "POST", f"{path}/sign", to_sign(method, uri, headers))


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "path", "delegation", "actions"),
    [
        (READER, T, KEYS, GET),
        (WRITER, T, KEYS, ALL),
        (WRITER, T, f"{SIGNING}, {KEYS}", ALL),
        (TOPIC_WRITER, TOPIC_TABLE, KEYS, GET),
        (["read on /shop/orders"], TOPIC_TABLE, f"{KEYS},{SIGNING}", GET),
        (["admin on cluster"], T, KEYS, ALL),
    ],
)
async def test_hazard_111_keys_open_the_location_of_their_table_and_nothing_else(
    tmp_path: Path, rules: list[str], path: str, delegation: str, actions: list[str]
) -> None:
    role = RecordingRole()
    async with secured_lake(tmp_path, {"alice": rules}, signing_access(role), warehouse=S3_WAREHOUSE) as lake:
        location = await location_of(lake, ORDERS if path == TOPIC_TABLE else PLAIN)
        config = await loaded(lake, path, delegation)
        (statement,) = json.loads(role.policies[0])["Statement"]
        resource = f"arn:aws:s3:::{location.removeprefix('s3://')}/*"
        assert statement == {"Effect": "Allow", "Action": actions, "Resource": [resource]}
        assert config["s3.access-key-id"] == "ASIA-user:local:alice"
        assert config["s3.session-token-expires-at-ms"] == "2000000000000"
        assert config["client.refresh-credentials-endpoint"] == f"{path.removeprefix('/')}/credentials"
        (entry,) = (await lake.as_("alice", "GET", f"{path}/credentials")).json["storage-credentials"]
        assert (entry["prefix"], entry["config"]) == (f"{location}/", config)
        assert b"hunter2" not in (await lake.as_("alice", "GET", path, x_iceberg_access_delegation=delegation)).body


@pytest.mark.parametrize(
    ("rules", "path", "delegation", "has_role"),
    [
        (READER, T, SIGNING, True),
        (READER, T, f"{KEYS},{SIGNING}", False),
        (TOPIC_WRITER, TOPIC_TABLE, f"{KEYS},{SIGNING}", True),
    ],
)
async def test_requests_are_signed_where_keys_would_not_do(
    tmp_path: Path, rules: list[str], path: str, delegation: str, has_role: bool
) -> None:
    role = RecordingRole() if has_role else None
    async with secured_lake(tmp_path, {"alice": rules}, signing_access(role), warehouse=S3_WAREHOUSE) as lake:
        config = await loaded(lake, path, delegation)
        assert config["s3.remote-signing-enabled"] == "true"
        assert config["s3.signer.endpoint"] == f"{path.removeprefix('/')}/sign"
        assert config["s3.endpoint"] == ENDPOINT
        assert "s3.access-key-id" not in config


@pytest.mark.parametrize("delegation", ["", "other", KEYS])
async def test_a_client_that_accepts_nothing_gets_nothing(tmp_path: Path, delegation: str) -> None:
    async with secured_lake(tmp_path, {"alice": READER}, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        assert await loaded(lake, T, delegation) == {}
        assert (await lake.as_("alice", "GET", f"{T}/credentials")).json == {"storage-credentials": []}


async def test_hazard_111_keys_of_the_store_are_not_shared_beside_accounts(tmp_path: Path) -> None:
    store = StoreOptions(kind="s3", region="r", access_key_id="AKIA", secret_access_key="hunter2")
    access = Access.of(store, True, ["s3://lake"])
    asking = {"x_iceberg_access_delegation": KEYS}
    async with secured_lake(tmp_path, {"root": ["admin on cluster"]}, access) as lake:
        for path in (T, f"{T}/credentials"):
            answer = await lake.as_("root", "GET", path, **asking)
            assert answer.status == 200
            assert b"hunter2" not in answer.body
    async with secured_lake(tmp_path, None, access) as lake:
        assert b"hunter2" in (await lake.as_("anonymous", "GET", T, **asking)).body


async def test_a_version_that_the_client_has_is_sent_again_with_keys_only(tmp_path: Path) -> None:
    async with secured_lake(
        tmp_path, {"alice": READER}, signing_access(RecordingRole()), warehouse=S3_WAREHOUSE
    ) as lake:
        tag = (await lake.as_("alice", "GET", T)).headers["etag"]
        assert (await lake.as_("alice", "GET", T, if_none_match=tag)).status == 304
        answer = await lake.as_("alice", "GET", T, if_none_match=tag, x_iceberg_access_delegation=KEYS)
        assert (answer.status, "s3.session-token" in answer.json["config"]) == (200, True)


async def placed(lake: SecuredLake, locations: Sequence[str], **properties: str) -> list[str]:
    """Creates tables as clients may while security is off; returns their paths."""
    for number, location in enumerate(locations):
        definition = {"schema": SCHEMA, "location": location, "properties": properties}
        await lake.catalog.tables.create(Identifier(("ns",), f"p{number}"), definition)
    return [f"/v1/namespaces/ns/tables/p{number}" for number in range(len(locations))]


@pytest.mark.parametrize(
    ("locations", "has_keys", "has_signing"),
    [
        (["s3://lake/tables/a"], True, True),
        (["s3://lake/tables/a", "s3://lake/tables/a2"], True, True),
        (["s3://lake/tables/a", "s3://lake/tables/a/b"], False, False),
        (["s3://lake/tables/a/b", "s3://lake/tables/a"], False, False),
        (["s3://lake/tables"], False, False),
        (["s3://lake/tables/ns"], False, False),
        (["s3://lake/tables/*"], False, True),
        (["s3://lake/tables/${aws:x}"], False, True),
        (["s3://lake/tables/a b"], False, True),
        (["s3://lake/tables/" + "a/" * 1200 + "z"], False, True),
    ],
)
async def test_hazard_111_a_place_that_is_not_the_tables_own_is_not_opened(
    tmp_path: Path, locations: list[str], has_keys: bool, has_signing: bool
) -> None:
    role = RecordingRole()
    async with secured_lake(
        tmp_path, {"root": ["admin on cluster"]}, signing_access(role), warehouse=S3_WAREHOUSE
    ) as lake:
        path = (await placed(lake, locations))[0]
        assert ("s3.access-key-id" in await loaded(lake, path, KEYS, "root")) == has_keys
        assert ("s3.signer" in await loaded(lake, path, SIGNING, "root")) == has_signing


async def test_hazard_111_keys_cover_the_directories_that_properties_name(tmp_path: Path) -> None:
    role = RecordingRole()
    async with secured_lake(
        tmp_path, {"root": ["admin on cluster"]}, signing_access(role), warehouse=S3_WAREHOUSE
    ) as lake:
        (path,) = await placed(lake, ["s3://lake/tables/a"], **{"write.data.path": "s3://lake/tables/data-of-a"})
        await loaded(lake, path, KEYS, "root")
        (statement,) = json.loads(role.policies[0])["Statement"]
        assert statement["Resource"] == ["arn:aws:s3:::lake/tables/a/*", "arn:aws:s3:::lake/tables/data-of-a/*"]
        other = {"schema": SCHEMA, "location": "s3://lake/tables/data-of-a/inside"}
        await lake.catalog.tables.create(Identifier(("ns",), "other"), other)
        assert await loaded(lake, path, KEYS, "root") == {}


async def test_hazard_111_the_creator_of_a_staged_table_gets_its_place(tmp_path: Path) -> None:
    role, asking = RecordingRole(), {"x_iceberg_access_delegation": KEYS}
    body = {"name": "new", "schema": SCHEMA, "stage-create": True}
    rules = {"maker": ["create on table:/ns/new", "describe on namespace:/ns"], "root": ["admin on cluster"]}
    async with secured_lake(tmp_path, rules, signing_access(role), warehouse=S3_WAREHOUSE) as lake:
        answer = await lake.as_("maker", "POST", "/v1/namespaces/ns/tables", body, **asking)
        location = answer.json["metadata"]["location"]
        (statement,) = json.loads(role.policies[0])["Statement"]
        assert statement["Resource"] == [f"arn:aws:s3:::{location.removeprefix('s3://')}/*"]
        assert statement["Action"] == ALL
        chosen = {**body, "location": await location_of(lake)}
        assert (await lake.as_("root", "POST", "/v1/namespaces/ns/tables", chosen, **asking)).status == 400


# --- signed requests --------------------------------------------------------------------------------------------------


FILES = [  # with the callers whose requests are signed
    ("GET", "data/f.parquet", "reader writer topic"),
    ("HEAD", "metadata/v1.metadata.json", "reader writer topic"),
    ("GET", "data/f.parquet?x-id=GetObject&partNumber=1", "reader writer topic"),
    ("PUT", "data/f.parquet", "writer topic"),
    ("PUT", "data/day=2026-11-18/a%20b.parquet", "writer topic"),
    ("PUT", "data/city=S%25C3%25A3o/f.parquet", "writer topic"),
    ("POST", "data/f.parquet?uploads", "writer topic"),
    ("PUT", "data/f.parquet?partNumber=1&uploadId=u", "writer topic"),
    ("POST", "data/f.parquet?uploadId=u", "writer topic"),
    ("DELETE", "data/f.parquet?uploadId=u", "writer topic"),
    ("DELETE", "data/f.parquet", "writer"),
    ("GET", "", ""),
    ("GET", "data/", ""),
    ("GET", "data/../../x", ""),
    ("GET", "data/%2e%2e/f", ""),
    ("GET", "data/%252e%252e/f", ""),
    ("GET", "data//f", ""),
    ("GET", "data/%ff", ""),
    ("GET", "data/f?acl", ""),
    ("GET", "data/f?versionId=1", ""),
    ("GET", "data/f?list-type=2", ""),
    ("GET", "data/f?X-Amz-Signature=0", ""),
    ("GET", "data/f?partNumber=1&partNumber=2", ""),
    ("PUT", "data/f?tagging", ""),
    ("PUT", "data/f?acl", ""),
    ("PUT", "data/f?uploads", ""),
    ("POST", "data/f?delete", ""),
    ("POST", "data/f?restore", ""),
    ("POST", "data/f", ""),
    ("PATCH", "data/f", ""),
    ("OPTIONS", "data/f", ""),
]


@pytest.mark.parametrize("caller", ["reader", "writer", "topic"])
async def test_hazard_111_only_files_of_the_table_are_signed_for(tmp_path: Path, caller: str) -> None:
    rules = {"reader": READER, "writer": WRITER, "topic": TOPIC_WRITER}
    async with secured_lake(tmp_path, rules, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        for method, name, allowed in FILES:
            path, table = (TOPIC_TABLE, ORDERS) if caller == "topic" else (T, PLAIN)
            uri = file_uri(await location_of(lake, table), name)
            answer = await signed(lake, method, uri, path, caller)
            assert answer.status == (200 if caller in allowed.split() else 403), (method, name, answer)
            if answer.status == 200:
                headers = answer.json["headers"]
                assert answer.json["uri"] == uri
                assert headers["Authorization"][0].startswith("AWS4-HMAC-SHA256 Credential=AKIABROKER/")
                is_creating = (method, name.partition("?")[2]) in (("PUT", ""), ("POST", "uploadId=u"))
                assert ("if-none-match" in headers["Authorization"][0]) == is_creating
                assert headers.get("If-None-Match") == (["*"] if is_creating else None)


ELSEWHERE = [
    f"{ENDPOINT}/lake",
    f"{ENDPOINT}/lake/",
    f"{ENDPOINT}/",
    f"{ENDPOINT}/other/{{key}}",
    f"{ENDPOINT}/lake/tables/ns/t2/data/f",
    f"{ENDPOINT}/lake/{{prefix}}x/f",
    f"{ENDPOINT}/{{key}}",
    "http://store/lake/{key}",
    "http://lake.store:8333/{key}",
    "http://evil@store:8333/lake/{key}",
    "http://store:8333.evil/lake/{key}",
    "http://evil/lake/{key}",
    "/lake/{key}",
    "lake/{key}",
    "http://store:8333/lake/{key}#x",
    "http://store:8333/lake/" + "a" * 9000,
]


async def test_hazard_111_another_place_or_host_is_not_signed_for(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"alice": WRITER}, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        prefix = (await location_of(lake)).removeprefix("s3://lake/")
        for address in ELSEWHERE:
            uri = address.replace("{key}", f"{prefix}/data/f").replace("{prefix}", prefix)
            for method in ("GET", "PUT", "DELETE"):
                answer = await signed(lake, method, uri)
                assert answer.status in (400, 403), (method, uri, answer)


HEADERS: list[tuple[str, dict[str, str], bool]] = [  # whether a request with them is signed
    ("PUT", {"x-amz-meta-a": "b", "X-Amz-Checksum-CRC32": "AAAA", "content-type": "text/plain"}, True),
    ("PUT", {"x-amz-server-side-encryption": "aws:kms"}, True),
    ("PUT", {"if-none-match": "*"}, True),
    ("GET", {"range": "bytes=0-1", "if-match": "etag"}, True),
    ("PUT", {"x-amz-copy-source": "/lake/secret"}, False),
    ("PUT", {"X-Amz-Copy-Source": "/lake/secret"}, False),
    ("PUT", {"x-amz-acl": "public-read"}, False),
    ("PUT", {"x-amz-grant-read": "everybody"}, False),
    ("PUT", {"x-amz-tagging": "a=b"}, False),
    ("PUT", {"x-amz-website-redirect-location": "/x"}, False),
    ("PUT", {"if-match": "etag"}, False),
    ("PUT", {"if-none-match": "etag"}, False),
    ("GET", {"x-amz-what-comes-next": "1"}, False),
    ("GET", {"a\nb": "1"}, False),
    ("GET", {"x-amz-meta-a": "1", "X-Amz-Meta-A": "2"}, False),
]


async def test_hazard_111_headers_that_reach_elsewhere_are_not_signed(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"alice": WRITER}, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        uri = file_uri(await location_of(lake), "data/f")
        for method, headers, is_signed in HEADERS:
            answer = await signed(lake, method, uri, headers=headers)
            assert (answer.status == 200) == is_signed, (headers, answer)
            assert answer.status in (200, 400, 403)
            if is_signed:
                names = answer.json["headers"]["Authorization"][0]
                assert all(name.lower() in names for name in headers if name.lower().startswith("x-amz-"))


async def test_hazard_111_a_revoked_right_ends_with_the_next_request(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {"alice": WRITER}, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        uri = file_uri(await location_of(lake), "data/f")
        assert (await signed(lake, "PUT", uri)).status == 200
        await lake.change({"alice": READER})
        assert (await signed(lake, "PUT", uri)).status == 403
        assert (await signed(lake, "GET", uri)).status == 200
        await lake.change({"alice": []})
        assert (await signed(lake, "GET", uri)).status == 404


async def test_a_file_is_signed_for_by_the_rights_to_its_table_whichever_route_is_asked(tmp_path: Path) -> None:
    """PyIceberg asks at the route of the table that it has loaded last."""
    rules = {"both": [*READER, *TOPIC_WRITER], "one": READER}
    async with secured_lake(tmp_path, rules, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        uri = file_uri(await location_of(lake, ORDERS), "data/f")
        assert [(await signed(lake, method, uri, T, "both")).status for method in ("GET", "PUT")] == [200, 403]
        # The answer does not tell whether the file is another table's.
        hidden, absent = await signed(lake, "GET", uri, T, "one"), uri.replace("orders", "absent")
        nothing = await signed(lake, "GET", absent, T, "one")
        assert (hidden.status, hidden.body) == (403, nothing.body.replace(b"absent", b"orders"))
        await lake.catalog.tables.drop(PLAIN)
        assert (await signed(lake, "GET", uri, T, "both")).status == 404


async def test_hazard_111_files_of_a_staged_table_are_written_and_not_read(tmp_path: Path) -> None:
    rules = {"maker": ["create on table:/ns/new"], "reader": READER}
    async with secured_lake(tmp_path, rules, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        new = "/v1/namespaces/ns/tables/new"
        uuid = "0190a0b1-0000-4000-8000-000000000001"
        for location, expected in (
            (f"s3://lake/tables/ns/new-{uuid}", {"PUT": 200, "HEAD": 200, "GET": 404, "DELETE": 404}),
            (f"s3://lake/tables/ns/other-{uuid}", {"PUT": 403, "HEAD": 403}),
            ("s3://lake/tables/ns/new-x", {"PUT": 403}),
            (f"s3://lake/tables/shop/new-{uuid}", {"PUT": 403}),
            (await location_of(lake), {"PUT": 403}),
        ):
            for method, status in expected.items():
                answer = await signed(lake, method, file_uri(location, "data/f"), new, "maker")
                assert answer.status == status, (location, method, answer)
        assert (
            await signed(lake, "PUT", file_uri(f"s3://lake/tables/ns/new-{uuid}", "f"), new, "reader")
        ).status == 404


async def test_hazard_123_a_name_that_may_be_created_is_signed_for_like_a_hidden_one(tmp_path: Path) -> None:
    rules = {"maker": ["all on table:/shop/**"]}
    async with secured_lake(tmp_path, rules, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        answers = [
            await signed(lake, "PUT", file_uri("s3://lake/x", "f"), f"/v1/namespaces/shop/tables/{name}", "maker")
            for name in ("secret", "absent")
        ]
        assert [answer.status for answer in answers] == [403, 403]
        assert answers[0].body == answers[1].body


@pytest.mark.parametrize("body", [{}, {"method": "GET"}, to_sign("GET", "x") | {"headers": []}, [], None])
async def test_a_malformed_request_to_sign_is_refused(tmp_path: Path, body: Any) -> None:
    async with secured_lake(tmp_path, {"alice": READER}, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        assert (await lake.as_("alice", "POST", f"{T}/sign", body)).status == 400


async def test_without_accounts_nothing_is_signed(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, None, signing_access(), warehouse=S3_WAREHOUSE) as lake:
        answer = await signed(lake, "GET", file_uri(await location_of(lake), "data/f"), name="anonymous")
        assert (answer.status, "needs accounts" in answer.json["error"]["message"]) == (400, True)
