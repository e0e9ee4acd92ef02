"""OAuth2 of the catalog, bearer tokens of requests, and what a lake process tells without them."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import urlencode

import pytest

from icestream.catalog.tokens import Tokens
from icestream.security.principal import service_account
from tests.support.asgi import AsgiResponse
from tests.support.secured_lake import SecuredLake, secured_lake

pytestmark = pytest.mark.asyncio
TABLE = "/v1/namespaces/ns/tables/t"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


async def asked(lake: SecuredLake, authorization: str = "", **form: str) -> AsgiResponse:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    headers |= {"authorization": authorization} if authorization else {}
    return await lake.ask("POST", "/v1/oauth/tokens", urlencode(form).encode(), headers)


def basic(name: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"


@pytest.mark.parametrize("by_header", [False, True])
async def test_a_password_is_exchanged_for_a_token_that_reads_tables(tmp_path: Path, by_header: bool) -> None:
    async with secured_lake(tmp_path, {"alice": ["read on table:/ns/t"]}) as lake:
        secret = {} if by_header else {"client_id": "alice", "client_secret": "password-of-alice"}
        header = basic("alice", "password-of-alice") if by_header else ""
        answer = await asked(lake, header, grant_type="client_credentials", scope="catalog", **secret)
        assert (answer.status, answer.json["token_type"]) == (200, "bearer")
        assert 3500 < answer.json["expires_in"] <= 3600
        assert answer.headers["cache-control"] == "no-store"
        token = answer.json["access_token"]
        loaded = await lake.ask("GET", TABLE, headers={"authorization": f"Bearer {token}"})
        assert loaded.status == 200
        refreshed = await asked(lake, grant_type=EXCHANGE, subject_token=token, subject_token_type="x")
        assert refreshed.json["access_token"] == token, "a new one would outlive the revocation of the first"


async def test_a_service_token_is_a_client_secret_of_its_own_account(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, {}) as lake:
        token = lake.service_tokens.mint(service_account("etl"), 0, [], 60).token
        answer = await asked(lake, grant_type="client_credentials", client_id="etl", client_secret=token)
        assert (answer.json["access_token"], answer.json["expires_in"] <= 120) == (token, True)
        assert (await asked(lake, grant_type="client_credentials", client_secret=token)).status == 200
        other = await asked(lake, grant_type="client_credentials", client_id="root", client_secret=token)
        assert (other.status, other.json["error"]) == (401, "invalid_client")


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        ({"client_id": "alice", "client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "nobody", "client_secret": "wrong"}, 401, "invalid_client"),
        ({"client_id": "alice"}, 401, "invalid_client"),
        ({}, 401, "invalid_client"),
        ({"client_id": "alice", "client_secret": "a.b.c"}, 401, "invalid_client"),
        ({"client_id": "alice", "client_secret": "x" * 9000}, 401, "invalid_client"),
        ({"grant_type": "password", "username": "alice"}, 400, "unsupported_grant_type"),
        ({"grant_type": EXCHANGE}, 401, "invalid_client"),
        ({"grant_type": EXCHANGE, "subject_token": "forged"}, 401, "invalid_client"),
    ],
)
async def test_invalid_requests_for_tokens_have_one_text(
    tmp_path: Path, form: dict[str, str], status: int, error: str
) -> None:
    async with secured_lake(tmp_path, {"alice": ["read on table:/ns/t"]}) as lake:
        answer = await asked(lake, **{"grant_type": "client_credentials", **form})
        assert (answer.status, answer.json["error"]) == (status, error)
        if status == 401:
            assert answer.json["error_description"] == "the credential is not valid"
        twice = await lake.ask("POST", "/v1/oauth/tokens", b"grant_type=a&grant_type=b")
        assert (twice.status, twice.json["error"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer ", "Bearer a b", "Basic YTpi", "Bearer forged", f"Bearer {'x' * 9000}", "x", "\xff"]
)
async def test_hazard_116_an_invalid_header_is_refused_and_not_anonymous(tmp_path: Path, header: str) -> None:
    async with secured_lake(tmp_path, {"anonymous": ["read on table:/ns/t"]}) as lake:
        assert (await lake.ask("GET", TABLE)).status == 200
        for path in (TABLE, "/api/v1/topics"):
            answer = await lake.ask("GET", path, headers={"authorization": header})
            assert answer.status == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/v1/config", "/api/v1", "/api/v1/openapi.json"])
async def test_routes_without_a_credential_reveal_no_names(tmp_path: Path, path: str) -> None:
    async with secured_lake(tmp_path, {}) as lake:
        answer = await lake.ask("GET", path)
        assert answer.status == 200
        assert b"shop/secret" not in answer.body


@pytest.mark.parametrize("path", ["/metrics", "/readyz?verbose"])
async def test_scraping_needs_the_right_to_describe_the_cluster(tmp_path: Path, path: str) -> None:
    async with secured_lake(tmp_path, {"scraper": ["describe on cluster"]}) as lake:
        assert (await lake.ask("GET", path)).status == 401
        assert (await lake.as_("nobody", "GET", path)).status == 403
        assert (await lake.as_("scraper", "GET", path)).status == 200


async def test_tokens_of_a_file_are_refused_beside_accounts(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    async with secured_lake(tmp_path, {"alice": ["read on table:/ns/t"]}, tokens=Tokens([token])) as lake:
        for path in (TABLE, "/api/v1/topics"):
            answer = await lake.as_("alice", "GET", path)
            assert answer.status in (422, 500)
            assert b"lake.token_file" in answer.body


async def test_without_accounts_no_credential_is_required(tmp_path: Path) -> None:
    async with secured_lake(tmp_path, None) as lake:
        for header in ({}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer forged"}):
            assert (await lake.ask("GET", TABLE, headers=header)).status == 200
        answer = await asked(lake, grant_type="client_credentials", client_id="a", client_secret="b")
        assert (answer.status, answer.json["error"]) == (400, "unsupported_grant_type")
    async with secured_lake(tmp_path, None, tokens=Tokens(["0123456789abcdef"])) as lake:
        assert (await lake.ask("GET", TABLE)).status == 401
        assert (await lake.ask("GET", TABLE, headers={"authorization": "Bearer 0123456789abcdef"})).status == 200
