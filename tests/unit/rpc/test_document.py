"""Documents round-trip, and everything else is a DecodeError, in bounded time and memory."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.rpc import document
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), TEXT,
        st.binary(max_size=12),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=12,
)  # fmt: skip
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)
SMALL = document.encode({"method": "öpen", "arguments": {"list": [1, -7, 2**40, None, 1.5, b"\0"], "map": {"": {}}}})


@given(DOCUMENTS)
def test_a_document_round_trips(fields: dict[str, Any]) -> None:
    assert document.decode(document.encode(fields)) == fields


def test_nan_and_infinity_round_trip() -> None:
    assert math.isnan(document.decode(document.encode({"x": math.nan}))["x"])


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def test_every_truncation_is_refused() -> None:
    assert document.decode(SMALL)["method"] == "öpen"
    for cut in truncations(SMALL):
        with pytest.raises(errors.DecodeError):
            document.decode(cut)


def test_every_flip_is_read_or_refused() -> None:
    outcomes = [decoded_or_refused(document.decode, flipped) for _, flipped in bit_flips(SMALL)]
    assert None in outcomes
    assert all(isinstance(outcome, dict) for outcome in outcomes if outcome is not None)


@given(st.one_of(st.binary(max_size=60), mutated(SMALL), st.binary(max_size=40).map(lambda data: b"\x81\xa1a" + data)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(document.decode, data)
    assert decoded is None or document.decode(document.encode(decoded)).keys() == decoded.keys()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="nil"),
        pytest.param(b"\x07", id="a number"),
        pytest.param(b"\xa1a", id="text"),
        pytest.param(b"\x91\x80", id="a list"),
        pytest.param(b"\x80\x80", id="two documents"),
        pytest.param(b"\x81\x01\x02", id="a key that is a number"),
        pytest.param(b"\x81\xc4\x01a\x02", id="a key that is bytes"),
        pytest.param(b"\x81\xa1a\x81\x01\x02", id="a key inside that is a number"),
        pytest.param(b"\x81\xa1a\x91\x81\xc0\x02", id="a key inside that is nil"),
        pytest.param(b"\x81\xa1a\x81\x81\xa1b\x01\x02", id="a key that is a map"),
        pytest.param(b"\x81\xa1\xff\x01", id="a key that is not UTF-8"),
        pytest.param(b"\x81\xa1a\xa1\xff", id="text that is not UTF-8"),
        pytest.param(b"\x81\xa1a\xa3\xed\xa0\x80", id="a surrogate"),
        pytest.param(b"\x81\xa1a\xc1", id="a type that is none"),
        pytest.param(b"\x81\xa1a\xd4\x07\x00", id="an extension"),
        pytest.param(b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", id="a time"),
        pytest.param(b"\x81\xa1a\xc7\xff\x01", id="an extension cut off"),
        pytest.param(b"\x81\xa1a\xdb\xff\xff\xff\xff", id="4 GiB of text"),
        pytest.param(b"\x81\xa1a\xc6\xff\xff\xff\xff", id="4 GiB of bytes"),
        pytest.param(b"\x81\xa1a\xdd\xff\xff\xff\xff", id="four billion values"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="four billion keys"),
        pytest.param(b"\x81\xa1a" + b"\xdd\x7f\xff\xff\xff" * 200, id="many times two billion values"),
        pytest.param(b"\x81\xa1a" + b"\x91" * 100_000, id="a hundred thousand levels"),
        pytest.param(b"\x81\xa1a" * 100_000, id="a hundred thousand levels of maps"),
    ],
)
def test_invalid_documents_are_refused(data: bytes) -> None:
    with pytest.raises(errors.DecodeError, match="not a document"):
        document.decode(data)


def nested(levels: int, innermost: Any = 1) -> dict[str, Any]:
    """A document of so many levels, maps and lists in turn, the outermost a map."""
    value: Any = innermost
    for level in range(levels - 1, 0, -1):
        value = [value] if level % 2 else {"k": value}
    return {"k": value}


def test_the_depth_is_bounded() -> None:
    most = nested(limits.DOCUMENT_DEPTH_MAX)
    assert document.decode(document.encode(most)) == most
    with pytest.raises(errors.DecodeError, match="levels"):
        document.decode(document.encode(nested(limits.DOCUMENT_DEPTH_MAX + 1)))


def test_the_size_is_bounded() -> None:
    most = {"k": bytes(limits.DOCUMENT_BYTES_MAX - 8)}
    assert len(document.encode(most)) == limits.DOCUMENT_BYTES_MAX
    assert document.decode(document.encode(most)) == most
    more = {"k": bytes(limits.DOCUMENT_BYTES_MAX - 7)}
    with pytest.raises(errors.InvalidInput, match="bytes"):
        document.encode(more)
    with pytest.raises(errors.DecodeError, match="are allowed"):
        document.decode(bytes(limits.DOCUMENT_BYTES_MAX + 1))


def test_the_number_of_values_is_bounded() -> None:
    most = {"k": [None] * (limits.DOCUMENT_ITEMS_MAX - 2)}
    assert document.decode(document.encode(most)) == most
    with pytest.raises(errors.DecodeError, match="too many values"):
        document.decode(document.encode({"k": [None] * (limits.DOCUMENT_ITEMS_MAX - 1)}))
    halves = {"a": {str(number): 0 for number in range(limits.DOCUMENT_ITEMS_MAX // 2)}}
    with pytest.raises(errors.DecodeError, match="too many values"):
        document.decode(document.encode(halves))


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, 10**400, "\ud800", object(), {1j: 2}, {"k": {"\udfff": 1}}, nested(100_000)],
    ids=["2^64", "below", "huge", "surrogate", "object", "complex", "surrogate key", "deep"],
)
def test_values_no_document_can_hold_are_refused_before_sending(value: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        document.encode({"value": value})


# --- fields -----------------------------------------------------------------------------------------------------------


def test_fields_are_of_their_type_and_within_their_bounds() -> None:
    fields = {"n": 7, "t": "täxt", "l": ["a", "bb"]}
    assert document.number_of(fields, "n", 7, 7) == 7
    assert document.number_of(fields, "x", 1, 9, 3) == 3
    assert document.text_of(fields, "t", 5) == "täxt"
    assert document.text_of(fields, "x", 5, "") == ""
    assert document.texts_of(fields, "l", 2, 2) == ("a", "bb")
    assert document.texts_of(fields, "x", 2, 2) == ()


@pytest.mark.parametrize("value", [None, True, 1.0, "7", b"7", 6, 10, 2**64 - 1, -1, [7]])
def test_an_invalid_number_is_refused(value: Any) -> None:
    with pytest.raises(errors.DecodeError, match="n is not a number from 7 to 9"):
        document.number_of({"n": value}, "n", 7, 9)
    with pytest.raises(errors.DecodeError):
        document.number_of({}, "n", 7, 9)


@pytest.mark.parametrize("value", [None, 1, b"text", ["text"], "ääx", "longer"])
def test_an_invalid_text_is_refused(value: Any) -> None:
    with pytest.raises(errors.DecodeError, match="t is not text"):
        document.text_of({"t": value}, "t", 4)
    with pytest.raises(errors.DecodeError):
        document.text_of({}, "t", 4)


@pytest.mark.parametrize("value", [None, "ab", {"a": 1}, ["a", 1], ["a", "bbb"], ["a", "b", "c"]])
def test_an_invalid_list_of_texts_is_refused(value: Any) -> None:
    with pytest.raises(errors.DecodeError, match="l is not a list"):
        document.texts_of({"l": value}, "l", 2, 2)


# --- calls ------------------------------------------------------------------------------------------------------------


@given(TEXT, DOCUMENTS)
def test_a_call_round_trips(method: str, arguments: dict[str, Any]) -> None:
    assert document.decode_call(document.encode_call(method, arguments)) == (method, arguments)


def test_unknown_keys_are_ignored() -> None:
    assert document.decode_call(document.encode({"method": "m", "later": [1, 2]})) == ("m", {})
    error = {"code": "refused", "message": "m", "hint": "h", "retryable": True, "later": {"a": 1}}
    assert isinstance(document.decode_error(document.encode(error)), errors.Refused)


@pytest.mark.parametrize(
    "call",
    [{}, {"method": 1}, {"method": ["m"]}, {"method": {}}, {"method": "m", "arguments": [1]}, {"arguments": {}},
     {"method": "m" * (limits.NAME_BYTES_MAX + 1)}, {"method": "m", "arguments": None}],
    ids=str,
)  # fmt: skip
def test_a_call_of_wrong_types_is_refused(call: dict[str, Any]) -> None:
    with pytest.raises(errors.DecodeError):
        document.decode_call(document.encode(call))


def test_a_call_is_smaller_than_a_document() -> None:
    shell = len(document.encode_call("m", {"k": bytes(2**15)})) - 2**15
    most = {"k": bytes(limits.CALL_BYTES_MAX - shell - 2)}  # from 64 KiB on the length takes two bytes more
    body = document.encode_call("m", most)
    assert limits.CALL_BYTES_MAX - 4 <= len(body) <= limits.CALL_BYTES_MAX
    assert document.decode_call(body) == ("m", most)
    with pytest.raises(errors.DecodeError, match="are allowed"):
        document.decode_call(document.encode_call("m", {"k": bytes(limits.CALL_BYTES_MAX)}))
    items = {"k": [0] * (limits.CALL_ITEMS_MAX - 6)}
    assert document.decode_call(document.encode_call("m", items)) == ("m", items)
    with pytest.raises(errors.DecodeError, match="too many values"):
        document.decode_call(document.encode_call("m", {"k": [0] * (limits.CALL_ITEMS_MAX - 5)}))


def test_hazard_35_the_bound_of_a_call_can_be_moved_for_a_listener_that_is_not_public() -> None:
    body = document.encode_call("m", {"k": bytes(limits.CALL_BYTES_MAX)})
    assert document.decode_call(body, limits.DOCUMENT_BYTES_MAX)[0] == "m"
    with pytest.raises(errors.DecodeError, match="are allowed"):
        document.decode_call(body, len(body) - 1)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_error_round_trips(kind: type[errors.IcestreamError]) -> None:
    error = document.decode_error(document.encode_error(kind("was geschah", hint="was hilft")))
    assert (type(error), error.message, error.hint) == (kind, "was geschah", "was hilft")
    assert (error.code, error.retryable) == (kind.code, kind.retryable)


def test_an_error_of_a_later_version_keeps_its_code_and_message() -> None:
    body = document.encode({"code": "from_later", "message": "m", "hint": "h", "retryable": True})
    error = document.decode_error(body)
    assert type(error) is errors.IcestreamError
    assert (error.code, error.message, error.hint, error.retryable) == ("from_later", "m", "h", True)
    assert (errors.IcestreamError.code, errors.IcestreamError.retryable) == ("internal", False)
    assert document.decode_error(document.encode_error(error)).code == "from_later"


@pytest.mark.parametrize(
    "text", ["", "x" * 100_000, "ä" * 100_000, "𝄞" * 5_000, "\ud800 lone", "\ud800" * 5_000], ids=lambda text: text[:3]
)
def test_any_error_message_can_be_sent(text: str) -> None:
    body = document.encode_error(errors.InvalidInput(text, hint=text))
    assert len(body) <= 64 + limits.ERROR_MESSAGE_BYTES_MAX + limits.ERROR_HINT_BYTES_MAX
    error = document.decode_error(body)
    assert error.message[:4] == text[:4] or "\ud800" in text
    assert len(error.message.encode()) > min(len(text), limits.ERROR_MESSAGE_BYTES_MAX) - 4


@pytest.mark.parametrize(
    "error",
    [
        {},
        {"code": 1},
        {"code": "refused", "message": 1},
        {"code": "refused", "hint": None},
        {"code": "refused", "retryable": 1},
        {"code": "refused", "message": "x" * (limits.ERROR_MESSAGE_BYTES_MAX + 1)},
        {"code": "x" * (limits.NAME_BYTES_MAX + 1)},
    ],
    ids=lambda error: str(error)[:40],
)
def test_an_error_of_wrong_types_is_refused(error: dict[str, Any]) -> None:
    with pytest.raises(errors.DecodeError):
        document.decode_error(document.encode(error))


@given(st.one_of(st.binary(max_size=60), mutated(document.encode_error(errors.DiskFull("m", hint="h")))))
def test_any_bytes_are_an_error_or_refused(data: bytes) -> None:
    error = decoded_or_refused(document.decode_error, data)
    assert error is None or isinstance(error, errors.IcestreamError)
