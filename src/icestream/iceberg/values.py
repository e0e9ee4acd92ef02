"""JSON from outside: typed reading of objects. Every refusal names the field, and nothing that was read is changed.

Fields that nobody asks for stay where they are: what other engines add to a document survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from icestream import errors, limits

Object = dict[str, Any]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 80


def decode(data: bytes, bytes_max: int = limits.CATALOG_BODY_BYTES_MAX) -> Object:
    """An object from its bytes."""
    if len(data) > bytes_max:
        raise errors.MessageTooLarge(f"a JSON document of {len(data)} bytes, at most {bytes_max} are read")
    try:
        found = orjson.loads(data)
    except ValueError as error:
        raise errors.InvalidInput(f"Cannot parse JSON: {error}") from None
    return as_object(found, "document")


def encode(values: Any) -> bytes:
    try:
        return orjson.dumps(values)
    except TypeError as error:  # nested too deeply, or a number that no 64 bits hold
        raise errors.InvalidInput(f"Cannot write as JSON: {error}") from None


def short_repr(value: Any) -> str:
    """A value as messages name it: short."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def as_object(value: Any, what: str) -> Object:
    if not isinstance(value, dict):
        raise errors.InvalidInput(f"Cannot parse {what} from non-object: {short_repr(value)}")
    return value


def required(holder: Object, name: str) -> Any:
    value = holder.get(name)
    if value is None:
        raise errors.InvalidInput(f"Cannot parse missing field: {name}")
    return value


def integer(holder: Object, name: str) -> int:
    """32 bits, as ids are."""
    return _number(required(holder, name), name, INT_MAX)


def long(holder: Object, name: str) -> int:
    """64 bits, as snapshots, times and sizes are."""
    return _number(required(holder, name), name, LONG_MAX)


def optional_integer(holder: Object, name: str) -> int | None:
    value = holder.get(name)
    return None if value is None else _number(value, name, INT_MAX)


def optional_long(holder: Object, name: str) -> int | None:
    value = holder.get(name)
    return None if value is None else _number(value, name, LONG_MAX)


def _number(value: Any, name: str, most: int) -> int:
    if type(value) is not int or not -most - 1 <= value <= most:  # a bool is no number, a float neither
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
    found = array(holder, name)
    for one in found:
        as_object(one, f"one of {name}")
    return found


def optional_objects(holder: Object, name: str) -> list[Object]:
    return [] if holder.get(name) is None else objects(holder, name)


def integers(holder: Object, name: str) -> list[int]:
    return [_number(value, name, INT_MAX) for value in array(holder, name)]


def longs(holder: Object, name: str) -> list[int]:
    return [_number(value, name, LONG_MAX) for value in array(holder, name)]


def texts(holder: Object, name: str) -> list[str]:
    return [_text(value, name) for value in array(holder, name)]


def text_map(holder: Object, name: str) -> dict[str, str]:
    found = as_object(required(holder, name), name)
    for key, value in found.items():
        if not isinstance(value, str):
            _text(value, f"{name} {short_repr(key)}")
    return found


def optional_text_map(holder: Object, name: str) -> dict[str, str]:
    return {} if holder.get(name) is None else text_map(holder, name)


def present_name(holder: Object, name: str, older_name: str) -> str:
    """The name under which a field is there, where an older one was allowed."""
    return older_name if holder.get(name) is None and older_name in holder else name


def find(items: Sequence[Object], id_name: str, wanted: int) -> Object | None:
    """The one of few items that has this id."""
    return next((item for item in items if item.get(id_name) == wanted), None)
