"""How a consumed message is written: a line each.

    text      shard:offset, key and payload, with tabs in between
    payload   the payload as it is
    json      an object; `produce --json` reads it. Bytes that are no text stand in payload_base64 and key_base64
    else      a pattern: %t topic, %s shard, %o offset, %k key, %p payload, %h headers as JSON, %d when it was
              published, %a when it was stored, %r how often it failed, %% a percent sign, \\t and \\n and \\\\
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import Any, Final

from icestream import errors
from icestream.cli.places import time_text
from icestream.client.message import Message

Format = Callable[[Message], bytes]
_PIECE: Final = re.compile(r"%.?|\\.?|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"\\t": b"\t", "\\n": b"\n", "\\\\": b"\\", "%%": b"%"}
_FIELDS: Final[dict[str, Format]] = {
    "%t": lambda message: message.topic.encode(),
    "%s": lambda message: b"%d" % message.shard,
    "%o": lambda message: b"%d" % message.offset,
    "%k": lambda message: message.key or b"",
    "%p": lambda message: message.payload,
    "%h": lambda message: json.dumps(message.headers, ensure_ascii=False).encode(errors="replace"),
    "%d": lambda message: (time_text(message.publish_time_us) or "").encode(),
    "%a": lambda message: (time_text(message.append_time_us) or "").encode(),
    "%r": lambda message: b"%d" % message.redelivery_count,
}


def format_of(text: str) -> Format:
    """Raises InvalidInput for a pattern that is none."""
    match text:
        case "text":
            return lambda message: b"%d:%d\t%s\t%s\n" % (
                message.shard, message.offset, message.key or b"", message.payload,
            )  # fmt: skip
        case "payload":
            return lambda message: message.payload + b"\n"
        case "json":
            return lambda message: json.dumps(document_of(message), ensure_ascii=False).encode(errors="replace") + b"\n"
    if "%" not in text:
        raise errors.InvalidInput(f"{text!r} is not a format", hint='text, json, payload, or a pattern like "%o %k %p"')
    pieces = [_piece(found) for found in _PIECE.findall(text)]
    return lambda message: b"".join(one if isinstance(one, bytes) else one(message) for one in pieces) + b"\n"


def _piece(text: str) -> bytes | Format:
    if text[0] not in "%\\":
        return os.fsencode(text)  # the bytes that the shell gave
    found = _ESCAPES.get(text) or _FIELDS.get(text)
    if found is None:
        raise errors.InvalidInput(
            f"{text!r} means nothing in a format", hint=f"there are {' '.join(_FIELDS)} %% \\t \\n"
        )
    return found


def document_of(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "shard": message.shard,
        "offset": message.offset,
        **_text_or_base64("key", message.key),
        **_text_or_base64("payload", message.payload),
        "headers": message.headers,
        "publish_time": time_text(message.publish_time_us),
        "append_time": time_text(message.append_time_us),
        "redelivery_count": message.redelivery_count,
    }


def _text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value or b"").decode()}
