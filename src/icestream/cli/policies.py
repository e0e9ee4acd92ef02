"""Policies on the command line: `key=value …`; `none`, or an empty value, unsets a policy.

For `partitioning`, `none` is a value (a table without partitions): an empty value unsets it.
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
    typer.Argument(metavar="[KEY=VALUE]...", help="Policies to change, `none` unsets one; without any, all are shown."),
]


def parse_policies(assignments: Iterable[str], keys: Sequence[str]) -> Document:
    """Policy values by key; None unsets a policy. Raises InvalidInput for a text that is not KEY=VALUE, for an unknown
    key and for an invalid number."""
    values: Document = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise errors.InvalidInput(f"{assignment!r} is not KEY=VALUE", hint=f"keys: {', '.join(keys)}")
        if key not in keys:
            matches = difflib.get_close_matches(key, keys, 1)
            hint = f"did you mean {matches[0]}?" if matches else f"policies: {', '.join(keys)}"
            raise errors.InvalidInput(f"unknown policy {key!r}", hint=hint)
        values[key] = _parse_value(key, text)
    return values


def _parse_value(key: str, text: str) -> str | int | None:
    if not text or (text == "none" and key != PARTITIONING):
        return None
    if key in _WORDS:
        return text
    try:
        return int(text)
    except ValueError:
        raise errors.InvalidInput(
            f"{key}={text} is not a number", hint="0 means unlimited, `none` unsets the policy"
        ) from None


def merge_failure_policy(before: Mapping[str, object], changes: Document) -> Document:
    """The complete failure policy after the changes; the default applies to an unset value."""
    merged = {**before, **changes}
    return {key: merged[key] for key in FAILURE_KEYS if merged[key] is not None}


def policies_cell(policies: Mapping[str, object]) -> Cell:
    text = ", ".join(f"{key}={value}" for key, value in policies.items() if value is not None)
    return Cell(dict(policies), text or "none")
