"""Formats of consumed messages, one line per message.

    text      shard:offset, key and payload, separated by tabs
    payload   the payload unchanged
    json      an object that `produce --json` reads; bytes that are not UTF-8 are in payload_base64 and key_base64
    else      a pattern: %t topic, %s shard, %o offset, %k key, %p payload, %h headers as JSON, %d publish time,
              %a append time, %r redelivery count, %% a percent sign, \\t and \\n and \\\\
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from typing import Any, Final

from icestream import errors
from icestream.cli.positions import time_text
from icestream.client.message import Message

MessageFormatter = Callable[[Message], bytes]
_PIECE: Final = re.compile(r"%.?|\\.?|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"\\t": b"\t", "\\n": b"\n", "\\\\": b"\\", "%%": b"%"}
_FIELDS: Final[dict[str, MessageFormatter]] = {
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


def parse_format(text: str) -> MessageFormatter:
    """The formatter for a format name or pattern. Raises InvalidInput."""
    match text:
        case "text":
            return lambda message: b"%d:%d\t%s\t%s\n" % (
                message.shard, message.offset, message.key or b"", message.payload,
            )  # fmt: skip
        case "payload":
            return lambda message: message.payload + b"\n"
        case "json":
            return lambda message: (
                json.dumps(message_document(message), ensure_ascii=False).encode(errors="replace") + b"\n"
            )
    if "%" not in text:
        raise errors.InvalidInput(
            f"unknown format {text!r}", hint='use text, json, payload, or a pattern such as "%o %k %p"'
        )
    pieces = [_piece(piece) for piece in _PIECE.findall(text)]
    return lambda message: b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces) + b"\n"


def _piece(text: str) -> bytes | MessageFormatter:
    if text[0] not in "%\\":
        return os.fsencode(text)  # the bytes as the shell passed them
    piece = _ESCAPES.get(text) or _FIELDS.get(text)
    if piece is None:
        raise errors.InvalidInput(
            f"unknown sequence {text!r} in the format", hint=f"valid are {' '.join(_FIELDS)} %% \\t \\n"
        )
    return piece


def message_document(message: Message) -> dict[str, Any]:
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
