"""Bodies: one object, no key twice, and everything else as it stands there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.lake.iceberg.request import decode_body

TEXT = st.text(st.sampled_from('a":\\ {}[],\n'), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.sampled_from([None, 1]), st.sampled_from([":", " : ", "\n:"]))
def test_a_body_without_duplicate_keys_is_accepted(value: dict[str, object], indent: int | None, colon: str) -> None:
    assert decode_body(json.dumps(value, indent=indent, separators=(",", colon)).encode()) == value


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1, "a": 1}',
        b'{"a" : 1, "a"\n: 2}',
        b'{"x": [{"a": {"b": 1, "b": 2}}]}',
        b'{"a": "\\":", "a": 1}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"": 1, "": 2, "z": "\\":\\":"}',
    ],
)
def test_a_duplicate_key_is_refused(raw: bytes) -> None:
    with pytest.raises(errors.InvalidInput, match="duplicate field"):
        decode_body(raw)


@pytest.mark.parametrize(
    "raw", [b"[]", b"", b"NaN", b'{"a": NaN}', b'{"a": "\\":"' + b', "b": [' * 999 + b"]" * 999 + b"}"]
)
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(errors.InvalidInput):
        decode_body(raw)
