"""Documents of the native protocol: msgpack maps, bounded. Calls and errors are documents.

A document is a map with text keys. Its values are nil, booleans, integers of 64 bits, floats, text (UTF-8), bytes,
lists and further maps with text keys; no extension types. It has at most DOCUMENT_BYTES_MAX bytes, DOCUMENT_ITEMS_MAX
values (keys count too) and DOCUMENT_DEPTH_MAX levels; a CALL at most CALL_BYTES_MAX and CALL_ITEMS_MAX, a RESULT of the
local socket LOCAL_RESULT_BYTES_MAX. If a key occurs twice the last value counts. Readers ignore unknown keys.

    CALL     {method, arguments}                  arguments: a document; empty if it is missing
    ERROR    {code, message, hint, retryable}     the texts are cut at ERROR_MESSAGE_BYTES_MAX and ERROR_HINT_BYTES_MAX
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from icestream import errors, limits

Document = dict[str, Any]

# Memory is bounded by the bytes received: msgspec grows a list with its values, whatever length it declares.
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(dict[str, Any])
_CONTAINERS: Final = {list, dict}
_VALUES: Final = {type(None), bool, int, float, str, bytes} | _CONTAINERS


def encode(document: dict[str, Any], bytes_max: int = limits.DOCUMENT_BYTES_MAX) -> bytes:
    """Raises InvalidInput for values that a document cannot hold."""
    try:
        encoded = _encoder.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidInput(f"value cannot be sent: {error}") from None
    if len(encoded) > bytes_max:
        raise errors.InvalidInput(f"document too large: {len(encoded)} bytes, limit {bytes_max}")
    return encoded


def decode(
    body: bytes, bytes_max: int = limits.DOCUMENT_BYTES_MAX, items_max: int = limits.DOCUMENT_ITEMS_MAX
) -> dict[str, Any]:
    """Raises DecodeError for anything that is not a document."""
    if len(body) > bytes_max:
        raise errors.DecodeError(f"document too large: {len(body)} bytes, {bytes_max} are allowed")
    try:
        document: dict[str, Any] = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DecodeError(f"not a document: {error}") from None
    _check_shape(document, items_max)
    return document


def _check_shape(document: dict[str, Any], items_max: int) -> None:
    """Checks types of keys and values, their number and their depth, level by level. Raises DecodeError."""
    level: list[Any] = [document]
    items = 0
    for _ in range(limits.DOCUMENT_DEPTH_MAX):
        below: list[Any] = []
        for container in level:
            values: Iterable[Any] = container
            items += len(container)
            if isinstance(container, dict):
                values = container.values()
                items += len(container)
                if not set(map(type, container)) <= {str}:
                    raise errors.DecodeError("not a document: a key that is not text")
            kinds = set(map(type, values))
            if not kinds <= _VALUES or items > items_max:
                raise errors.DecodeError("not a document: an extension type, or too many values")
            if kinds & _CONTAINERS:
                below += [value for value in values if type(value) in _CONTAINERS and value]
        if not below:
            return
        level = below
    raise errors.DecodeError(f"not a document: more than {limits.DOCUMENT_DEPTH_MAX} levels")


def encode_call(method: str, arguments: dict[str, Any], bytes_max: int = limits.DOCUMENT_BYTES_MAX) -> bytes:
    """Raises InvalidInput for arguments that a document cannot hold."""
    return encode({"method": method, "arguments": arguments}, bytes_max)


def decode_call(body: bytes, bytes_max: int = limits.CALL_BYTES_MAX) -> tuple[str, dict[str, Any]]:
    """Returns method and arguments. Raises DecodeError."""
    call = decode(body, bytes_max, limits.CALL_ITEMS_MAX)
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise errors.DecodeError("the arguments of a CALL are not a map")
    return text_of(call, "method", limits.NAME_BYTES_MAX), arguments


# --- fields -----------------------------------------------------------------------------------------------------------


def text_of(document: dict[str, Any], key: str, bytes_max: int, default: str | None = None) -> str:
    """Raises DecodeError if the value is missing (and has no default), is not text, or is too long."""
    text = document.get(key, default)
    if not isinstance(text, str) or len(text.encode()) > bytes_max:
        raise errors.DecodeError(f"{key} is not text of at most {bytes_max} bytes")
    return text


def texts_of(document: dict[str, Any], key: str, count_max: int, bytes_max: int) -> tuple[str, ...]:
    """Returns a list of texts; empty if it is missing. Raises DecodeError."""
    texts = document.get(key, [])
    is_short = isinstance(texts, list) and len(texts) <= count_max
    if not is_short or any(not isinstance(text, str) or len(text.encode()) > bytes_max for text in texts):
        raise errors.DecodeError(f"{key} is not a list of at most {count_max} texts of at most {bytes_max} bytes")
    return tuple(texts)


def number_of(document: dict[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    """Raises DecodeError if the value is missing (and has no default), is not an integer, or is out of range."""
    number = document.get(key, default)
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise errors.DecodeError(f"{key} is not a number from {low} to {high}")
    return number


# --- errors -----------------------------------------------------------------------------------------------------------


def encode_error(error: errors.IcestreamError) -> bytes:
    fields: dict[str, Any] = {
        "code": error.code,
        "message": cut_text(error.message, limits.ERROR_MESSAGE_BYTES_MAX),
        "hint": cut_text(error.hint, limits.ERROR_HINT_BYTES_MAX),
        "retryable": error.retryable,
    }
    if isinstance(error, errors.TopicElsewhere):
        fields["places"] = error.details
    return encode(fields)


def cut_text(text: str, bytes_max: int) -> str:
    """Returns the beginning of `text` that fits in `bytes_max` bytes of UTF-8. Never raises: an error may quote values
    of the other side, which may be invalid Unicode (a lone surrogate)."""
    encoded = text.encode(errors="backslashreplace")
    return encoded.decode() if len(encoded) <= bytes_max else encoded[:bytes_max].decode(errors="ignore")


def decode_error(body: bytes) -> errors.IcestreamError:
    """Returns the error that the other side raised, as the same class; an unknown code gives an IcestreamError with
    that code. Raises DecodeError."""
    fields = decode(body)
    code = text_of(fields, "code", limits.NAME_BYTES_MAX)
    message = text_of(fields, "message", limits.ERROR_MESSAGE_BYTES_MAX, "")
    hint = text_of(fields, "hint", limits.ERROR_HINT_BYTES_MAX, "")
    retryable = fields.get("retryable", False)
    if not isinstance(retryable, bool):
        raise errors.DecodeError("retryable is neither true nor false")
    kind = errors.BY_CODE.get(code)
    if kind is errors.TopicElsewhere:
        return errors.TopicElsewhere(message, hint=hint, details=_decode_addresses(fields.get("places", {})))
    if kind is not None:
        return kind(message, hint=hint)
    error = errors.IcestreamError(message, hint=hint)
    error.code, error.retryable = code, retryable  # type: ignore[misc]  # of this one instance
    return error


def _decode_addresses(addresses: Any) -> dict[str, str]:
    if not isinstance(addresses, dict):
        raise errors.DecodeError("places is not a map")
    names = ("node", "native", "danube", "http")
    return {name: text_of(addresses, name, limits.NAME_BYTES_MAX) for name in names if name in addresses}
