"""The head of a request of the broker's own HTTP: valid heads are parsed, and everything else is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.observability.http_request import END, Request, parse

HEAD = b"GET /readyz?verbose&a=1&a=2 HTTP/1.1\r\nHost: x\r\nAccept: a\r\nAccept:b \r\n\r\n"


def test_a_request_is_parsed() -> None:
    assert parse(HEAD) == Request(
        "GET", "/readyz", {"verbose": [""], "a": ["1", "2"]}, {"host": "x", "accept": "a, b"}, 1
    )


def test_a_path_is_unquoted() -> None:
    assert parse(b"GET /a%20b HTTP/1.0\r\n\r\n").path == "/a b"


@pytest.mark.parametrize(
    ("version", "connection", "expected"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: close\r\n", False),
        (b"1.1", b"Connection: foo, Close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: keep-alive\r\n", True),
    ],
)
def test_whether_another_request_may_follow(version: bytes, connection: bytes, expected: bool) -> None:
    assert parse(b"GET / HTTP/" + version + b"\r\nHost: x\r\n" + connection + b"\r\n").keeps_alive is expected


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_anything_but_a_request_without_a_body_is_refused(head: bytes) -> None:
    with pytest.raises(errors.InvalidInput):
        parse(head)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    with contextlib.suppress(errors.InvalidInput):
        assert parse(data + END).path.startswith("/")


@given(st.data())
def test_a_changed_byte_is_a_request_or_refused(data: st.DataObject) -> None:
    changed = bytearray(HEAD)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(HEAD) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(errors.InvalidInput):
        request = parse(bytes(changed))
        assert "\r" not in request.path + "".join(request.headers.values())
