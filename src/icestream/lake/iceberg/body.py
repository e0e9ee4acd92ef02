"""A body of Iceberg's REST protocol: one JSON object in which no key stands twice.

Of two equal keys every reader takes the one that it likes, so what passed a check could be something else afterwards.
The fast parser does not say so. But each key in the text ends with a quote and a colon, so if there are as many of
these as keys in what was read, none was left out; else, and that is rare, a slower parser looks at them one by one.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr

_KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')


def decode(raw: bytes) -> Object:
    found = values.decode(raw)
    if _count_keys(found) != len(_KEY_END.findall(raw)):
        try:
            json.loads(raw, object_pairs_hook=_refuse_doubles)
        except (RecursionError, ValueError):
            raise errors.InvalidInput("Cannot parse JSON: too deep, or a number that is too long") from None
    return found


def _count_keys(found: Object) -> int:
    count = 0
    left: list[Any] = [found]
    while left:
        one = left.pop()
        if type(one) is dict:
            count += len(one)
            left += one.values()
        elif type(one) is list:
            left += one
    return count


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> None:
    known = set[str]()
    for name, _ in pairs:
        if name in known:
            raise errors.InvalidInput(f"Cannot parse JSON: two fields {short_repr(name)} in one object")
        known.add(name)
