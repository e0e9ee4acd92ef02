"""Roles for tables: what the token service is asked, how its answers are read, and keys that are handed out again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs

import pytest

from icestream import errors, limits
from icestream.catalogs.aws_signature import AwsKeys
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.catalogs.table_role import TableRole, sts_endpoint
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness

pytestmark = pytest.mark.asyncio
ROLE = "arn:aws-cn:iam::1:role/tables"
GOOD = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2026-11-18T12:45:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class TokenService:
    """Answers each request with the next of `answers`, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = [(200, GOOD)]
        self.forms: list[dict[str, list[str]]] = []
        service = self

        class TokenHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                service.forms.append(parse_qs(body.decode()))
                assert "/us-east-1/sts/aws4_request" in self.headers["authorization"]
                status, answer = service.answers[0] if len(service.answers) == 1 else service.answers.pop(0)
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), TokenHandler)


@pytest.fixture
def service() -> Iterator[TokenService]:
    tokens = TokenService()
    thread = threading.Thread(target=tokens.server.serve_forever, args=(0.01,))
    thread.start()
    yield tokens
    tokens.server.shutdown()
    thread.join()
    tokens.server.server_close()


def role_at(service: TokenService, clock: SimulatedClock) -> TableRole:
    endpoint = f"http://127.0.0.1:{service.server.server_port}"
    options = StoreOptions(
        kind="s3", endpoint=endpoint, access_key_id="AKIA", secret_access_key="s", table_role_arn=ROLE
    )
    caller = StorageCaller("token service", clock, SeededRandomness(1), CallTimeouts(5.0, 1))
    return TableRole(options, StoreKeys(options, clock), caller)


async def test_a_role_is_assumed_with_the_policy_for_a_quarter_of_an_hour(service: TokenService) -> None:
    clock = SimulatedClock()
    role = role_at(service, clock)
    keys = await role.assume("{}", "user:local:alice smith")
    assert keys == AwsKeys("ASIA", "s", "t", 1_795_005_900_000)
    (form,) = service.forms
    assert form["Policy"] == ["{}"]
    assert form["RoleArn"] == [ROLE]
    assert form["DurationSeconds"] == ["900"]
    assert form["RoleSessionName"] == ["user-local-alice-smith"]
    assert role.partition == "aws-cn"
    await role.close()


async def test_keys_are_handed_out_again_to_the_same_caller_for_a_while(service: TokenService) -> None:
    clock = SimulatedClock()
    role = role_at(service, clock)
    for policy, principal, requests in (("a", "x", 1), ("a", "x", 1), ("b", "x", 2), ("a", "y", 3)):
        await role.assume(policy, principal)
        assert len(service.forms) == requests
    clock.advance(limits.VENDED_KEYS_REUSED_SECONDS + 1)
    await role.assume("a", "x")
    assert len(service.forms) == 4
    await role.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"), errors.AccessDenied),
        ((400, b"no XML"), errors.AccessDenied),
        ((500, b""), errors.StorageUnavailable),
        ((429, b""), errors.StorageUnavailable),
        ((200, b"<html>"), errors.UnexpectedAnswer),
        ((200, b"<a/>"), errors.UnexpectedAnswer),
        ((200, GOOD.replace(b"2026-11-18T12:45:00Z", b"soon")), errors.UnexpectedAnswer),
        ((200, b" " * (limits.STS_ANSWER_BYTES_MAX + 1)), errors.UnexpectedAnswer),
        ((302, b""), errors.AccessDenied),
    ],
)
async def test_a_token_service_that_refuses_gives_no_keys(
    service: TokenService, answer: tuple[int, bytes], error: type[errors.IcestreamError]
) -> None:
    service.answers = [answer]
    role = role_at(service, SimulatedClock())
    with pytest.raises(error):
        await role.assume("{}", "x")
    await role.close()


async def test_where_roles_are_assumed() -> None:
    assert sts_endpoint(StoreOptions(region="eu-west-1")) == "https://sts.eu-west-1.amazonaws.com"
    assert sts_endpoint(StoreOptions(endpoint="http://store")) == "http://store"
    assert sts_endpoint(StoreOptions(endpoint="http://store", sts_endpoint="http://sts")) == "http://sts"


async def test_keys_of_the_process_are_found_where_the_settings_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedClock()
    keys = StoreKeys(StoreOptions(kind="s3"), clock)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert (await keys.current()).access_key_id == "first"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    assert (await keys.current()).access_key_id == "first"
    clock.advance(limits.PROCESS_KEYS_MS / 1000)
    assert (await keys.current()).access_key_id == "second"
