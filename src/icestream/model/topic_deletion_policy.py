"""What becomes of a topic's table and of its messages that are in no table, when it is deleted (hazard 49). Policies of
the topic, of its namespace, or settings; whoever deletes may say otherwise.

deleted_table   keep      a table like any other: nobody's topic, nobody's rules
                drop      it has no name any more; its files stay
                purge     its files go too, an hour later or more
deleted_rest    commit    the pipeline brings them into the table first; until then the log keeps them
                discard   they go, and how many is said
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
        raise errors.InvalidInput(f"{text!r} is nothing that becomes of a table", hint="keep, drop or purge")
    return DeletedTablePolicy(text)


def parse_deleted_rest(text: str) -> DeletedRestPolicy:
    if text not in list(DeletedRestPolicy):
        raise errors.InvalidInput(f"{text!r} is nothing that becomes of the rest", hint="commit or discard")
    return DeletedRestPolicy(text)
