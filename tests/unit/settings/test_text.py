"""Names, hosts, addresses, URIs, locations and directories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.settings import text


@pytest.mark.parametrize(
    ("form", "accepted"),
    [
        (text.NAME, ["a", "node-1", "us-east-1", "a.b_c", "x" * 128]),
        (text.NAMESPACE, ["danube", "a.b", "a/b/c"]),
        (text.HOST, ["127.0.0.1", "::1", "0.0.0.0", "localhost", "broker-1.example.org", "broker_1"]),
        (text.ADDRESS, ["0.0.0.0:7650", "localhost:1", "[::1]:65535", "broker-1.example.org:7650"]),
        (text.HTTP_URI, ["http://localhost:8181", "https://catalog.example.org/v1", "http://[::1]:8181/"]),
        (text.LOCATION, ["s3://danube-warehouse/", "file:/a b/c", "/a/b", "memory:///warehouse"]),
        (text.RELATIVE, ["warehouse", "a/b"]),
        (text.DIRECTORY, ["/var/lib/danube/wal", "./x", "a b"]),
    ],
)
def test_accepted(form: text.Text, accepted: list[str]) -> None:
    assert [value for value in accepted if form.read(value) != value] == []


@pytest.mark.parametrize(
    ("form", "refused"),
    [
        (text.NAME, ["", "-a", ".", "..", "a/b", "a b", "a\n", "x" * 129, 7, None, ["a"]]),
        (text.NAMESPACE, ["", "a..b", "../a", "a/", "/a", "a//b"]),
        (text.HOST, ["", " ", "a b", "host:80", "[::1]", "-a", "a" * 254, "1.2.3.4\n", True]),
        (text.ADDRESS, ["", "host", "host:", ":7650", "host:0", "host:65536", "host:-1", "::1:7650", "[host]:1"]),
        (text.ADDRESS, ["host:\u0667"]),
        (text.HTTP_URI, ["", "localhost:8181", "ftp://x", "http://", "http://u:p@x", "http://x:99999", "http://[::1"]),
        (text.HTTP_URI, ["http://a b", "http://a\n", "http://@a"]),
        (text.LOCATION, ["", " a", "a\n", "a\x00", "x" * 1025]),
        (text.RELATIVE, ["", "/a", "../a", "a/../b"]),
        (text.DIRECTORY, ["", "  ", "a\0b", 7]),
    ],
)
def test_refused(form: text.Text, refused: list[object]) -> None:
    for value in refused:
        with pytest.raises(ValueError, match="must be "):
            form.read(value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert text.is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "my-machine", "127.1", ""])
def test_not_certainly_loopback(host: str) -> None:
    assert not text.is_loopback(host)


@given(st.text())
def test_any_text_is_accepted_or_refused_with_a_value_error(value: str) -> None:
    for form in (text.NAME, text.NAMESPACE, text.HOST, text.ADDRESS, text.HTTP_URI, text.LOCATION, text.DIRECTORY):
        try:
            assert form.read(value) == value
        except ValueError as error:
            assert str(error) == f"must be {form.allowed}"  # noqa: PT017 both outcomes are right
