"""What `icestream lake describe` says of a table, where no broker is needed to see it."""

from __future__ import annotations

import pytest

from icestream.cli.lake_reading import owner


@pytest.mark.parametrize(
    ("topic", "is_deleted", "said"),
    [
        ("/default/again", False, "/default/again"),
        ("/default/again", True, "/default/again (deleted, id 7)"),
        (None, False, None),
    ],
)
def test_a_deleted_topic_is_told_from_one_of_the_same_name(
    topic: str | None, is_deleted: bool, said: str | None
) -> None:
    assert owner({"topic": topic, "topic_id": 7, "is_topic_deleted": is_deleted}) == said
