"""What somebody probably meant: the names that are there, and are nearly the one that is not."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from icestream import errors

LISTING = "`icestream topic list` shows all"


def nearest(name: str, known: Iterable[str]) -> str | None:
    found = difflib.get_close_matches(name, known, 1, cutoff=0.8)
    return found[0] if found else None


async def with_suggestion(
    error: errors.UnknownTopic, call: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
) -> errors.UnknownTopic:
    """The same error with a hint that names the topic that was meant, if there is one like it."""
    known: list[str] = []
    with contextlib.suppress(errors.IcestreamError):
        known = (await call("list_topics", {}))["topics"]
    meant = nearest(error.message.rpartition(" ")[2], known)
    hint = f"do you mean {meant}? {LISTING}" if meant is not None else f"{error.hint}; {LISTING}"
    return errors.UnknownTopic(error.message, hint=hint)
