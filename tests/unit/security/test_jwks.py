"""Key sets of external issuers: rotated, down, slow, huge, redirected."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from icestream import errors, limits
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.tasks import InlineOffload
from icestream.security.jwks import KeySet, fetch_key_set, parse_key_set, read_key_file
from tests.support.held_offload import HeldOffload

SHORT_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
ED_KEY = ed25519.Ed25519PrivateKey.generate().public_key()


def entry(key_id: str, **changes: Any) -> dict[str, Any]:
    return {**OKPAlgorithm.to_jwk(ED_KEY, as_dict=True), "kid": key_id, **changes}


def key_set(*key_ids: str) -> bytes:
    return json.dumps({"keys": [entry(key_id) for key_id in key_ids]}).encode()


class Issuer:
    """An issuer whose answer the test chooses; None: it is down."""

    def __init__(self, offload: Any = None) -> None:
        self.answer: bytes | None = key_set("a")
        self.loads = 0
        self.clock = SimulatedClock()
        self.keys = KeySet(self.load, "https://idp", "icestream", self.clock, offload or InlineOffload())

    def load(self) -> bytes:
        self.loads += 1
        if self.answer is None:
            raise OSError("down")
        return self.answer

    async def has(self, key_id: str) -> bool:
        return await self.keys.find(key_id) is not None


@pytest.mark.asyncio
async def test_a_rotated_key_is_fetched_once_a_minute_at_most() -> None:
    issuer = Issuer()
    assert await issuer.has("a")
    assert await issuer.has("")  # the only one
    issuer.answer = key_set("a", "b")
    assert not await issuer.has("b")
    assert issuer.loads == 1
    issuer.clock.advance(limits.JWKS_REFETCH_SECONDS)
    assert await issuer.has("b")
    assert not await issuer.has("")  # one of two
    for number in range(100):
        assert not await issuer.has(f"forged {number}")
    assert issuer.loads == 2


@pytest.mark.asyncio
async def test_the_last_good_keys_are_kept_for_a_day() -> None:
    issuer = Issuer()
    assert await issuer.has("a")
    for answer in (None, b"not JSON", b'{"keys": []}', b"[]"):
        issuer.answer = answer
        issuer.clock.advance(limits.JWKS_AGE_SECONDS + 1)
        assert await issuer.has("a")
    issuer.clock.advance(limits.JWKS_KEPT_SECONDS)
    assert not await issuer.has("a")
    issuer.answer = key_set("a")
    issuer.clock.advance(limits.JWKS_REFETCH_SECONDS)
    assert await issuer.has("a")
    await issuer.keys.close()


@pytest.mark.asyncio
async def test_a_key_that_the_issuer_withdrew_is_refused_after_the_next_fetch() -> None:
    issuer = Issuer()
    assert await issuer.has("a")
    issuer.answer = key_set("b")
    issuer.clock.advance(limits.JWKS_AGE_SECONDS + 1)
    await issuer.keys.find("a")
    await issuer.keys.close()  # waits for the fetch
    assert not await issuer.has("a")
    assert await issuer.has("b")


@pytest.mark.asyncio
async def test_logins_share_a_fetch_and_known_keys_do_not_wait_for_it() -> None:
    offload = HeldOffload()
    issuer = Issuer(offload)
    assert await issuer.has("a")
    offload.hold()
    issuer.answer = key_set("a", "b")
    issuer.clock.advance(limits.JWKS_REFETCH_SECONDS)
    waiting = [asyncio.create_task(issuer.has("b")) for _ in range(10)]
    await offload.until_waiting()
    assert await issuer.has("a")
    waiting[0].cancel()
    offload.release()
    assert await asyncio.gather(*waiting[1:]) == [True] * 9
    assert issuer.loads == 2


@pytest.mark.parametrize(
    "keys",
    [
        [{"kty": "oct", "k": "AAAA", "alg": "HS256"}],
        [entry("a", alg="HS256")],
        [entry("a", alg="RS256")],
        [entry("a", alg="none")],
        [entry("a", use="enc")],
        [entry("a", crv="P-256")],
        [{"kty": "OKP"}],
        [{"kty": 7}],
        ["text"],
        [entry("a", x="AA", alg="EdDSA")],
        [RSAAlgorithm.to_jwk(SHORT_KEY, as_dict=True)],
    ],
)  # fmt: skip
def test_keys_that_cannot_be_used_are_not(keys: list[Any]) -> None:
    with pytest.raises(errors.DecodeError, match="no key for signatures"):
        parse_key_set(json.dumps({"keys": keys}).encode(), "https://idp", "icestream")
    beside = json.dumps({"keys": [*keys, entry("good")]}).encode()
    assert list(parse_key_set(beside, "https://idp", "icestream")) == ["good"]


def test_a_file_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set("a"))
    assert list(parse_key_set(read_key_file(path), "i", "a")) == ["a"]
    path.write_bytes(b" " * (limits.JWKS_BYTES_MAX + 1))
    with pytest.raises(errors.DecodeError, match="larger"):
        read_key_file(path)


Answer = Callable[[http.server.BaseHTTPRequestHandler], None]
AUTHORITY = trustme.CA()


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, ssl.SSLContext]]:
    """A TLS server; yields its address and a context that trusts it."""

    class KeySetHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeySetHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    trusting = ssl.create_default_context()
    AUTHORITY.configure_trust(trusting)
    try:
        yield f"https://localhost:{server.server_port}/keys", trusting
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reply(handler: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def test_keys_are_fetched_over_https_from_a_server_that_is_trusted() -> None:
    with serving(lambda handler: reply(handler, key_set("a"))) as (address, context):
        assert fetch_key_set(address, context) == key_set("a")
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch_key_set(address)
        for other in (address.replace("https", "http"), "file:///etc/passwd", address.replace("//", "//a:b@")):
            with pytest.raises(errors.DecodeError, match="https only"):
                fetch_key_set(other, context)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda handler: reply(handler, b"", 302, Location="https://169.254.169.254/"), "answered 302"),
        (lambda handler: reply(handler, b"oops", 500), "answered 500"),
        (lambda handler: reply(handler, b" " * (limits.JWKS_BYTES_MAX + 1)), "larger"),
        (lambda handler: handler.wfile.write(b"SSH-2.0\r\n"), "not HTTP"),
    ],
)
def test_other_answers_than_keys_are_refused(answer: Answer, text: str) -> None:
    with serving(answer) as (address, context), pytest.raises(errors.DecodeError, match=text):
        fetch_key_set(address, context)


@pytest.mark.parametrize("is_body", [True, False])
def test_an_issuer_that_sends_single_bytes_times_out(is_body: bool) -> None:
    ended = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n" + (b"\r\n" if is_body else b"X: "))
        while not ended.wait(0.02):
            handler.wfile.write(b"x")

    with serving(drip) as (address, context):
        with pytest.raises((errors.DecodeError, OSError)):
            fetch_key_set(address, context, 0.2)
        ended.set()


def test_a_server_that_does_not_answer_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OSError, match="timed out"):
        fetch_key_set(f"https://127.0.0.1:{silent.getsockname()[1]}/", None, 0.1)
