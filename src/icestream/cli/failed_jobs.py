"""What commands say about background jobs of the pipeline that failed and are backed off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream import errors
from icestream.cli.broker_connection import call_broker
from icestream.cli.broker_location import Target
from icestream.cli.output import print_note
from icestream.observability.words import counted


def failed_jobs(target: Target, topic: str | None = None) -> list[dict[str, Any]]:
    """The failures that the pipeline has reported: all, or those of a topic and of jobs as a whole. Empty if the broker
    cannot be reached, or no pipeline has reported: the command shows what it was asked for without them."""
    try:
        state = call_broker(target, lambda calls: calls.call("pipeline_state")).get("state") or {}
    except errors.IcestreamError:
        return []
    failures: list[dict[str, Any]] = state.get("failed_jobs") or []
    return [entry for entry in failures if topic is None or entry["topic"] in ("", topic)]


def print_failed_jobs(failures: Sequence[Mapping[str, Any]]) -> None:
    """Prints a note for each failure."""
    for entry in failures:
        place = f" of {entry['topic']}" if entry["topic"] else ""
        print_note(
            f"{entry['job']}{place} failed {counted(entry['times'], 'time')}: {entry['error']}; "
            f"tried again in {entry['retry_seconds']:.0f} s at the earliest"
        )
