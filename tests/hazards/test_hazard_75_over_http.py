"""Hazard 75 as clients see it: a rewrite of the pipeline through the catalog's HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from tests.hazards.test_hazard_14_over_http import TABLE, TopicWorld, committed
from tests.support.iceberg import commit_of, error_of
from tests.support.topic_tables import LEASE, data_file, new_name, rewrite_claim

pytestmark = pytest.mark.asyncio
CHANGES = FileChanges([data_file("file:/warehouse/a.parquet", 0, 10)], [data_file(new_name(1), 0, 10)])


@pytest.mark.parametrize(
    ("requirement", "status", "says"),
    [
        (rewrite_claim(7, CHANGES, lease=LEASE - 1), (409, "CommitFailedException"), "pipeline epoch 4"),
        (rewrite_claim(7, CHANGES, topic_id=99), (409, "CommitFailedException"), "belongs to topic"),
        (rewrite_claim(7, CHANGES, kind="sort"), (400, "IllegalArgumentException"), "unknown kind of job"),
        (rewrite_claim(7, CHANGES, replaced=[]), (400, "IllegalArgumentException"), "at least one"),
    ],
    ids=["late", "of another topic", "of an unknown kind", "of nothing"],
)
async def test_hazard_75_a_rewrite_that_may_not_be_committed_is_refused(
    requirement: dict[str, Any], status: tuple[int, str], says: str
) -> None:
    """Without a look at its manifests, which do not exist here."""
    world = TopicWorld()
    client = await world.rounds(3)
    before = await client("GET", TABLE)
    answer = await client.sent("POST", TABLE, commit_of(await world.updates(9, "replace"), requirement))
    assert error_of(answer)[:2] == status
    assert says in error_of(answer)[2]
    assert await client("GET", TABLE) == before


async def test_hazard_75_a_rewrite_whose_manifests_cannot_be_read_changes_nothing() -> None:
    world = TopicWorld()
    client = await world.rounds(3)
    body = commit_of(await world.updates(9, "replace"), rewrite_claim(7, CHANGES))
    answer = await client.sent("POST", TABLE, body)
    assert error_of(answer)[:2] == (404, "NotFoundException")
    assert committed(await client("GET", TABLE)) == {"0": 30}
