"""Policies for the deletion of a topic: what happens to its table and to its uncommitted messages (hazard 49).

They are policies of the topic or its namespace, or settings; the deletion call may override them.

deleted_table   keep      the table stays, as an ordinary table without a topic
                drop      the table is removed from the catalog; its files stay
                purge     its files are removed, too, an hour later or more
deleted_rest    commit    the pipeline commits uncommitted messages to the table first; until then the log keeps them
                discard   uncommitted messages are discarded, and their number is reported
"""

from __future__ import annotations

from enum import StrEnum

from icestream import errors


class DeletedTablePolicy(StrEnum):
    KEEP = "keep"
    DROP = "drop"
    PURGE = "purge"


class DeletedRestPolicy(StrEnum):
    COMMIT = "commit"
    DISCARD = "discard"


def parse_deleted_table(text: str) -> DeletedTablePolicy:
    if text not in list(DeletedTablePolicy):
        raise errors.InvalidInput(f"{text!r} is not a policy for a deleted topic's table", hint="keep, drop or purge")
    return DeletedTablePolicy(text)


def parse_deleted_rest(text: str) -> DeletedRestPolicy:
    if text not in list(DeletedRestPolicy):
        raise errors.InvalidInput(f"{text!r} is not a policy for uncommitted messages", hint="commit or discard")
    return DeletedRestPolicy(text)
