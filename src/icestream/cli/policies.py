"""Policies on the command line: `key=value …`; `none`, or an empty value, unsets a policy.

Keys and types come from the declarations (model/topic_policies.py, model/subscription_options.py). Where `none` is a
value of a policy, as of `partitioning` (a table without partitions), only an empty value unsets it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from icestream import errors
from icestream.cli.output import Cell
from icestream.model.field_metadata import number_fields
from icestream.model.subscription_options import FailurePolicy
from icestream.model.topic_policies import POLICIES, PolicyValues

Document = dict[str, Any]
TOPIC_KEYS: tuple[str, ...] = tuple(POLICIES)
FAILURE_KEYS: tuple[str, ...] = FailurePolicy.__struct_fields__
DISPATCH_RATE = "max_dispatch_rate"
_NUMBERS = number_fields(PolicyValues) | number_fields(FailurePolicy)  # the others are words

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
    """Only numbers are parsed here: the broker says which words a policy allows."""
    none_is_value = key in POLICIES and POLICIES[key].accepts_none
    if not text or (text == "none" and not none_is_value):
        return None
    if key not in _NUMBERS:
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
