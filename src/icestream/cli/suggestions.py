"""Suggestions for misspelled topic names: the existing name that is closest to an unknown one."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from icestream import errors

LISTING = "`icestream topic list` lists all topics"


def closest_match(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most similar to the name; None if none is similar enough."""
    matches = difflib.get_close_matches(name, candidates, 1, cutoff=0.8)
    return matches[0] if matches else None


async def suggest_topic(
    error: errors.UnknownTopic, list_topics: Callable[[], Awaitable[dict[str, Any]]]
) -> errors.UnknownTopic:
    """The same error with a hint that names the most similar existing topic, if there is one.

    `list_topics`: the call of this name.
    """
    topics: list[str] = []
    # The suggestion is a courtesy: if topics cannot be listed, the original error still has to reach the user.
    with contextlib.suppress(errors.IcestreamError):
        topics = (await list_topics())["topics"]
    suggestion = closest_match(error.message.rpartition(" ")[2], topics)
    hint = f"did you mean {suggestion}? {LISTING}" if suggestion is not None else f"{error.hint}; {LISTING}"
    return errors.UnknownTopic(error.message, hint=hint)
