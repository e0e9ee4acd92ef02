"""Policies as the command line writes them: `key=value …`, where `none`, or nothing, takes a value back.

Of `partitioning`, `none` is a value: a table without partitions. Nothing takes it back.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from icestream import errors
from icestream.broker.records import FailurePolicyRecord, TopicPolicies
from icestream.cli.output import Cell

Document = dict[str, Any]
TOPIC_KEYS: tuple[str, ...] = TopicPolicies.__struct_fields__
FAILURE_KEYS: tuple[str, ...] = FailurePolicyRecord.__struct_fields__
DISPATCH_RATE = "max_dispatch_rate"
PARTITIONING = "partitioning"
_WORDS = (
    "backoff",
    "poison",
    "dead_letter_topic",
    PARTITIONING,
    "compression",
    "deleted_table",
    "deleted_rest",
)  # the others are numbers

PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="KEY=VALUE", help="Such as max_publish_rate=1000; repeatable."),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="What to change, `none` takes a value back; else they are shown."),
]


def changes_of(given: Iterable[str], keys: Sequence[str]) -> Document:
    """Raises InvalidInput for what is not KEY=VALUE, and for keys that do not exist."""
    found: Document = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            raise errors.InvalidInput(f"{one!r} is not KEY=VALUE", hint=f"keys are {', '.join(keys)}")
        if key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            hint = f"the nearest one is {near[0]}" if near else f"there are {', '.join(keys)}"
            raise errors.InvalidInput(f"there is no policy {key!r}", hint=hint)
        found[key] = _value(key, value)
    return found


def _value(key: str, text: str) -> str | int | None:
    if not text or (text == "none" and key != PARTITIONING):
        return None
    if key in _WORDS:
        return text
    try:
        return int(text)
    except ValueError:
        raise errors.InvalidInput(
            f"{key}={text} is not a number", hint="0 means no bound, none takes it back"
        ) from None


def changed_failure(before: Mapping[str, object], changes: Document) -> Document:
    """A whole failure policy; a value that is taken back gets its default."""
    kept = {**before, **changes}
    return {key: kept[key] for key in FAILURE_KEYS if kept[key] is not None}


def policies_cell(policies: Mapping[str, object]) -> Cell:
    text = ", ".join(f"{key}={value}" for key, value in policies.items() if value is not None)
    return Cell(dict(policies), text or "none")
