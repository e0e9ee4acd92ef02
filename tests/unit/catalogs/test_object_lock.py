"""Object lock: locks and their order, requests in XML, addresses of buckets."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.catalogs.object_lock import (
    LockRequests,
    ObjectLocks,
    ObjectRetention,
    bucket_url,
    decode_retention,
    encode_retention,
    retention_date,
)
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness

RETENTIONS = st.builds(
    ObjectRetention,
    st.sampled_from(["governance", "compliance"]),
    st.integers(0, 4_000_000_000).map(lambda s: s * 1_000),
)


@given(RETENTIONS)
def test_a_retention_is_read_as_it_was_written(retention: ObjectRetention) -> None:
    assert decode_retention(encode_retention(retention)) == retention


@given(RETENTIONS, RETENTIONS)
def test_an_extended_lock_covers_both(existing: ObjectRetention, wanted: ObjectRetention) -> None:
    extended = existing.extended(wanted)
    assert extended.covers(existing)
    assert extended.covers(wanted)
    if existing.covers(wanted):
        assert extended == existing


def test_dates_are_rounded_up_to_seconds() -> None:
    assert retention_date(1_000) == "1970-01-01T00:00:01Z"
    assert retention_date(1_001) == "1970-01-01T00:00:02Z"


@pytest.mark.parametrize(
    "answer",
    [
        b"<Retention><Mode>GOVERNANCE</Mode></Retention>",
        b"<Retention><Mode>NONE</Mode><RetainUntilDate>2026-11-20T00:00:00Z</RetainUntilDate></Retention>",
        b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2026-11-20T00:00:00</RetainUntilDate></Retention>",
        b"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>soon</RetainUntilDate></Retention>",
    ],
)
def test_an_answer_that_is_no_retention_is_an_error(answer: bytes) -> None:
    with pytest.raises(errors.UnexpectedAnswer, match="not the retention of an object"):
        decode_retention(answer)


@pytest.mark.parametrize("answer", [b"", b"no XML", b"<Retention/>"])
def test_an_answer_without_a_lock_is_none(answer: bytes) -> None:
    assert decode_retention(answer) is None


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (StoreOptions(region="eu-central-1"), "https://s3.eu-central-1.amazonaws.com/b"),
        (StoreOptions(), "https://s3.us-east-1.amazonaws.com/b"),
        (StoreOptions(endpoint="http://127.0.0.1:1/", path_style=True), "http://127.0.0.1:1/b"),
        (StoreOptions(endpoint="https://b.store.example"), "https://b.store.example"),
    ],
)
def test_the_address_of_a_bucket(options: StoreOptions, url: str) -> None:
    assert bucket_url(options, "b") == url


# --- what a store answers ---------------------------------------------------------------------------------------------


def refusal(code: str) -> bytes:
    return f"<Error><Code>{code}</Code></Error>".encode()


LOCKED = ObjectRetention("governance", 5_000)


@contextmanager
def store(status: int, answer: bytes) -> Iterator[tuple[ObjectLocks, list[str]]]:
    """A store that gives one answer to every request; the requests that it got."""
    requests: list[str] = []

    class LockHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply()

        def do_PUT(self) -> None:
            self.reply()

        def reply(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            assert "/us-east-1/s3/aws4_request" in self.headers["authorization"]
            requests.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), LockHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    options = StoreOptions(
        kind="s3", endpoint=f"http://127.0.0.1:{server.server_port}", path_style=True, access_key_id="AKIA",
        secret_access_key="s",
    )  # fmt: skip
    clock = SimulatedClock()
    caller = StorageCaller("store", clock, SeededRandomness(1), CallTimeouts(5.0, 1))
    try:
        yield ObjectLocks(options, "b", lambda name: f"p/{name}", StoreKeys(options, clock), caller), requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("call", "status", "answer", "error", "text"),
    [
        (
            LockRequests.check_bucket,
            404,
            refusal("ObjectLockConfigurationNotFoundError"),
            errors.ConfigurationError,
            "",
        ),
        (LockRequests.check_bucket, 501, refusal("NotImplemented"), errors.ConfigurationError, "501, NotImplemented"),
        (LockRequests.check_bucket, 200, b"<ObjectLockConfiguration/>", errors.ConfigurationError, "status 200"),
        (LockRequests.check_bucket, 403, refusal("AccessDenied"), errors.AccessDenied, "status 403"),
        (LockRequests.check_bucket, 503, refusal("SlowDown"), errors.StorageUnavailable, "status 503"),
        (LockRequests.check_bucket, 200, b" " * (limits.OBJECT_LOCK_ANSWER_BYTES_MAX + 1), errors.UnexpectedAnswer, ""),
        (lambda r: r.retention("x"), 404, refusal("NoSuchKey"), errors.BackupDamaged, "object x in bucket b"),
        (lambda r: r.retention("x"), 403, refusal("AccessDenied"), errors.AccessDenied, "s3:GetObjectRetention for x"),
        (lambda r: r.retention("x"), 400, refusal("Odd"), errors.UnexpectedAnswer, "status 400"),
        (lambda r: r.put_new("x", b"1", LOCKED), 403, refusal("AccessDenied"), errors.AccessDenied, "s3:PutObject"),
        (lambda r: r.put_new("x", b"1", LOCKED), 409, refusal("Conflict"), errors.StorageUnavailable, "status 409"),
    ],
)
async def test_what_a_store_refuses_has_an_error_of_its_own(
    call: Callable[[LockRequests], Awaitable[object]],
    status: int,
    answer: bytes,
    error: type[errors.IcestreamError],
    text: str,
) -> None:
    with store(status, answer) as (locks, _):
        async with locks.connect() as requests:
            with pytest.raises(error) as raised:
                await call(requests)
    assert type(raised.value) is error
    assert text in raised.value.message


@pytest.mark.asyncio
@pytest.mark.parametrize("existing", [LOCKED, ObjectRetention("compliance", 6_000)])
async def test_a_lock_that_is_long_and_strong_enough_is_not_sent_again(existing: ObjectRetention) -> None:
    with store(200, encode_retention(existing)) as (locks, sent):
        async with locks.connect() as requests:
            await requests.extend("a b/ü", LOCKED)
            assert sent == ["GET /b/p/a%20b/%C3%BC?retention"]
            await requests.extend("x", ObjectRetention("governance", 7_000))
    assert sent[1:] == ["GET /b/p/x?retention", "PUT /b/p/x?retention"]


@pytest.mark.asyncio
@pytest.mark.parametrize("code", ["NoSuchObjectLockConfiguration", "ObjectLockConfigurationNotFoundError"])
async def test_an_object_without_a_lock_has_none(code: str) -> None:
    with store(404, refusal(code)) as (locks, _):
        async with locks.connect() as requests:
            assert await requests.retention("x") is None


@pytest.mark.asyncio
async def test_a_name_that_is_taken_is_not_written() -> None:
    with store(412, refusal("PreconditionFailed")) as (locks, sent):
        async with locks.connect() as requests:
            assert not await requests.put_new("x", b"1", LOCKED)
    assert sent == ["PUT /b/p/x"]
