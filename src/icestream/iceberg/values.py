"""Typed access to the fields of JSON objects that clients and other engines wrote. Pure.

Every refusal (InvalidInput) names the field. Nothing that was read is modified, so fields that this code does not know
survive: other engines may have added them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from icestream import errors, limits

Object = dict[str, Any]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_REPR_CHARACTERS: Final = 80


def decode(data: bytes, bytes_max: int = limits.CATALOG_BODY_BYTES_MAX) -> Object:
    """Decodes an object. Raises MessageTooLarge, and InvalidInput for bytes that are not a JSON object."""
    if len(data) > bytes_max:
        raise errors.MessageTooLarge(f"JSON document of {len(data)} bytes exceeds the limit of {bytes_max}")
    try:
        document = orjson.loads(data)
    except ValueError as error:
        raise errors.InvalidInput(f"Cannot parse JSON: {error}") from None
    return as_object(document, "document")


def encode(values: Any) -> bytes:
    try:
        return orjson.dumps(values)
    except TypeError as error:  # nested too deeply, or a number beyond 64 bits
        raise errors.InvalidInput(f"Cannot write as JSON: {error}") from None


def short_repr(value: Any) -> str:
    """Returns a value for an error message, truncated."""
    text = repr(value)
    return text if len(text) <= _REPR_CHARACTERS else f"{text[:_REPR_CHARACTERS]}…"


def as_object(value: Any, value_name: str) -> Object:
    if not isinstance(value, dict):
        raise errors.InvalidInput(f"Cannot parse {value_name} from non-object: {short_repr(value)}")
    return value


def required(holder: Object, name: str) -> Any:
    value = holder.get(name)
    if value is None:
        raise errors.InvalidInput(f"Cannot parse missing field: {name}")
    return value


def integer(holder: Object, name: str) -> int:
    """Returns a required 32-bit number, such as the id of a schema."""
    return _number(required(holder, name), name, INT_MAX)


def long(holder: Object, name: str) -> int:
    """Returns a required 64-bit number, such as a snapshot id, a time or a size."""
    return _number(required(holder, name), name, LONG_MAX)


def optional_integer(holder: Object, name: str) -> int | None:
    value = holder.get(name)
    return None if value is None else _number(value, name, INT_MAX)


def optional_long(holder: Object, name: str) -> int | None:
    value = holder.get(name)
    return None if value is None else _number(value, name, LONG_MAX)


def _number(value: Any, name: str, value_max: int) -> int:
    if type(value) is not int or not -value_max - 1 <= value <= value_max:  # neither bool nor float
        raise errors.InvalidInput(f"Cannot parse {name} from non-integer: {short_repr(value)}")
    return value


def text(holder: Object, name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else _text(required(holder, name), name)


def optional_text(holder: Object, name: str) -> str | None:
    value = holder.get(name)
    return None if value is None else _text(value, name)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise errors.InvalidInput(f"Cannot parse {name} from non-string: {short_repr(value)}")
    return value


def flag(holder: Object, name: str) -> bool:
    value = required(holder, name)
    if not isinstance(value, bool):
        raise errors.InvalidInput(f"Cannot parse {name} from non-boolean: {short_repr(value)}")
    return value


def optional_flag(holder: Object, name: str, default: bool = False) -> bool:
    return default if holder.get(name) is None else flag(holder, name)


def array(holder: Object, name: str) -> list[Any]:
    value = required(holder, name)
    if not isinstance(value, list):
        raise errors.InvalidInput(f"Cannot parse {name} from non-array: {short_repr(value)}")
    return value


def objects(holder: Object, name: str) -> list[Object]:
    items = array(holder, name)
    for item in items:
        as_object(item, f"one of {name}")
    return items


def optional_objects(holder: Object, name: str) -> list[Object]:
    return [] if holder.get(name) is None else objects(holder, name)


def integers(holder: Object, name: str) -> list[int]:
    return [_number(value, name, INT_MAX) for value in array(holder, name)]


def longs(holder: Object, name: str) -> list[int]:
    return [_number(value, name, LONG_MAX) for value in array(holder, name)]


def texts(holder: Object, name: str) -> list[str]:
    return [_text(value, name) for value in array(holder, name)]


def text_map(holder: Object, name: str) -> dict[str, str]:
    mapping = as_object(required(holder, name), name)
    for key, value in mapping.items():
        if not isinstance(value, str):
            _text(value, f"{name} {short_repr(key)}")
    return mapping


def optional_text_map(holder: Object, name: str) -> dict[str, str]:
    return {} if holder.get(name) is None else text_map(holder, name)


def present_name(holder: Object, name: str, older_name: str) -> str:
    """Returns `older_name` if only that field is present, else `name`."""
    return older_name if holder.get(name) is None and older_name in holder else name


def find(items: Sequence[Object], id_name: str, item_id: int) -> Object | None:
    """Returns the item with this id, or None. For short lists."""
    return next((item for item in items if item.get(id_name) == item_id), None)
