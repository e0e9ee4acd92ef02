"""Documents of the native protocol: msgpack maps, bounded. Calls and errors are documents.

A document is a map with text keys. Its values are nil, booleans, integers of 64 bits, floats, text (UTF-8), bytes,
lists and further maps with text keys; no extension types. It has at most DOCUMENT_BYTES_MAX bytes, DOCUMENT_ITEMS_MAX
values (keys count too) and DOCUMENT_DEPTH_MAX levels; a CALL at most CALL_BYTES_MAX and CALL_ITEMS_MAX. Of a key that
comes twice the last counts. Keys that are not known are ignored by whoever reads the document.

    CALL     {method, arguments}                  arguments: a document; empty when it is left out
    ERROR    {code, message, hint, retryable}     the texts are cut at ERROR_MESSAGE_BYTES_MAX and ERROR_HINT_BYTES_MAX
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from icestream import errors, limits

Document = dict[str, Any]

# Memory follows what was sent: msgspec makes a list as long as its values come, not as long as it claims to be.
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(dict[str, Any])
_CONTAINERS: Final = {list, dict}
_VALUES: Final = {type(None), bool, int, float, str, bytes} | _CONTAINERS


def encode(document: dict[str, Any], bytes_max: int = limits.DOCUMENT_BYTES_MAX) -> bytes:
    """Raises InvalidInput for what no document can hold."""
    try:
        found = _encoder.encode(document)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise errors.InvalidInput(f"this cannot be sent: {error}") from None
    if len(found) > bytes_max:
        raise errors.InvalidInput(f"a document of {len(found)} bytes", hint=f"at most {bytes_max} bytes are allowed")
    return found


def decode(
    body: bytes, bytes_max: int = limits.DOCUMENT_BYTES_MAX, items_max: int = limits.DOCUMENT_ITEMS_MAX
) -> dict[str, Any]:
    """Raises DecodeError for anything that is not a document."""
    if len(body) > bytes_max:
        raise errors.DecodeError(f"a document of {len(body)} bytes; {bytes_max} are allowed")
    try:
        found: dict[str, Any] = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DecodeError(f"not a document: {error}") from None
    _check_shape(found, items_max)
    return found


def _check_shape(document: dict[str, Any], items_max: int) -> None:
    """Level by level: types of keys and values, how many there are, and how deep they lie."""
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
    return encode({"method": method, "arguments": arguments}, bytes_max)


def decode_call(body: bytes, bytes_max: int = limits.CALL_BYTES_MAX) -> tuple[str, dict[str, Any]]:
    found = decode(body, bytes_max, limits.CALL_ITEMS_MAX)
    arguments = found.get("arguments", {})
    if not isinstance(arguments, dict):
        raise errors.DecodeError("the arguments of a CALL are not a map")
    return text_of(found, "method", limits.NAME_BYTES_MAX), arguments


# --- fields -----------------------------------------------------------------------------------------------------------


def text_of(document: dict[str, Any], key: str, bytes_max: int, default: str | None = None) -> str:
    """Raises DecodeError when it is not there (and has no default), not text, or too long."""
    found = document.get(key, default)
    if not isinstance(found, str) or len(found.encode()) > bytes_max:
        raise errors.DecodeError(f"{key} is not text of at most {bytes_max} bytes")
    return found


def texts_of(document: dict[str, Any], key: str, count_max: int, bytes_max: int) -> tuple[str, ...]:
    """A list of texts; none when it is not there."""
    found = document.get(key, [])
    is_short = isinstance(found, list) and len(found) <= count_max
    if not is_short or any(not isinstance(one, str) or len(one.encode()) > bytes_max for one in found):
        raise errors.DecodeError(f"{key} is not a list of at most {count_max} texts of at most {bytes_max} bytes")
    return tuple(found)


def number_of(document: dict[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    found = document.get(key, default)
    if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
        raise errors.DecodeError(f"{key} is not a number from {low} to {high}")
    return found


# --- errors -----------------------------------------------------------------------------------------------------------


def encode_error(error: errors.IcestreamError) -> bytes:
    found: dict[str, Any] = {
        "code": error.code,
        "message": cut_text(error.message, limits.ERROR_MESSAGE_BYTES_MAX),
        "hint": cut_text(error.hint, limits.ERROR_HINT_BYTES_MAX),
        "retryable": error.retryable,
    }
    if isinstance(error, errors.TopicElsewhere):
        found["places"] = error.details
    return encode(found)


def cut_text(text: str, bytes_max: int) -> str:
    """The beginning of `text` that fits in so many bytes of UTF-8. Never raises: an error may quote what was sent to
    us, and that may be no text at all (a lone surrogate)."""
    encoded = text.encode(errors="backslashreplace")
    return encoded.decode() if len(encoded) <= bytes_max else encoded[:bytes_max].decode(errors="ignore")


def decode_error(body: bytes) -> errors.IcestreamError:
    """The same kind of error that the other side raised; one that is not known here keeps its code and its words."""
    found = decode(body)
    code = text_of(found, "code", limits.NAME_BYTES_MAX)
    message = text_of(found, "message", limits.ERROR_MESSAGE_BYTES_MAX, "")
    hint = text_of(found, "hint", limits.ERROR_HINT_BYTES_MAX, "")
    retryable = found.get("retryable", False)
    if not isinstance(retryable, bool):
        raise errors.DecodeError("retryable is neither true nor false")
    kind = errors.BY_CODE.get(code)
    if kind is errors.TopicElsewhere:
        return errors.TopicElsewhere(message, hint=hint, details=_places_of(found.get("places", {})))
    if kind is not None:
        return kind(message, hint=hint)
    error = errors.IcestreamError(message, hint=hint)
    error.code, error.retryable = code, retryable  # type: ignore[misc]  # of this one instance
    return error


def _places_of(found: Any) -> dict[str, str]:
    if not isinstance(found, dict):
        raise errors.DecodeError("places is not a map")
    names = ("node", "native", "danube", "http")
    return {name: text_of(found, name, limits.NAME_BYTES_MAX) for name in names if name in found}
