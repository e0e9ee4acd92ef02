"""Addresses of brokers: what people write, and what is none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.client.address import DEFAULT, Address, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEFAULT, Address("127.0.0.1", 6651)),
        ("icestream://broker", Address("broker", 6651)),
        ("icestream://broker:7000/", Address("broker", 7000)),
        ("localhost", Address("localhost", 6651)),
        ("broker.example:1", Address("broker.example", 1)),
        ("[::1]:6651", Address("::1", 6651)),
        ("icestream://[fe80::1%eth0]", Address("fe80::1%eth0", 6651)),
        ("unix:///run/icestream.sock", Address("", 0, "/run/icestream.sock")),
    ],
)
def test_an_address_is_read_and_shown_again(text: str, expected: Address) -> None:
    address = parse_address(text)
    assert address == expected
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", ":6651", "http://broker:6651", "broker:0", "broker:65536", "broker:port", "a b", "unix://relative", "::1"],
)
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match=re.escape(DEFAULT)):
        parse_address(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = parse_address(text)
    except errors.InvalidInput:
        return
    assert parse_address(str(address)) == address
