"""Decodes a body of Iceberg's REST protocol: one JSON object without duplicate keys.

Parsers differ in which of two equal keys they use, so a body could pass a check with one value and be applied with the
other. The fast parser does not report duplicates. But every key in the text ends with a quote and a colon: if the text
has as many of these as the result has keys, there is no duplicate. Otherwise (rare: a string may contain the same
characters) a slower parser checks key by key.
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
    """The object in the body. Raises InvalidInput."""
    document = values.decode(raw)
    if _count_keys(document) != len(_KEY_END.findall(raw)):
        try:
            json.loads(raw, object_pairs_hook=_reject_duplicates)
        except (RecursionError, ValueError):
            raise errors.InvalidInput("Cannot parse JSON: nested too deeply, or a number is too long") from None
    return document


def _count_keys(document: Object) -> int:
    """The number of keys of all objects in the document. Iterative: a document may be nested deeply."""
    count = 0
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if type(value) is dict:
            count += len(value)
            pending += value.values()
        elif type(value) is list:
            pending += value
    return count


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise errors.InvalidInput(f"Cannot parse JSON: duplicate field {short_repr(name)} in an object")
        names.add(name)
