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


class TableEnd(StrEnum):
    KEEP = "keep"
    DROP = "drop"
    PURGE = "purge"


class RestEnd(StrEnum):
    COMMIT = "commit"
    DISCARD = "discard"


def table_end(text: str) -> TableEnd:
    if text not in list(TableEnd):
        raise errors.InvalidInput(f"{text!r} is nothing that becomes of a table", hint="keep, drop or purge")
    return TableEnd(text)


def rest_end(text: str) -> RestEnd:
    if text not in list(RestEnd):
        raise errors.InvalidInput(f"{text!r} is nothing that becomes of the rest", hint="commit or discard")
    return RestEnd(text)
