"""`icestream namespace` against a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icestream import testing
from tests.support.command_line import CommandResult, icestream


@pytest.fixture
def local() -> Iterator[tuple[str, str]]:
    with testing.broker(storage="disk") as test_broker:
        yield "--broker", str(test_broker.node.settings.local_socket)


def names(local: tuple[str, str]) -> list[str]:
    return [row["namespace"] for row in icestream("namespace", "list", *local, "--output", "json").document]


def test_a_namespace_is_created_shown_and_deleted(local: tuple[str, str]) -> None:
    before = names(local)
    created = icestream("namespace", "create", "shop", "--policy", "max_producers=3", *local)
    assert (created.code, created.out) == (0, "namespace  shop\npolicies   max_producers=3\n")
    assert names(local) == sorted([*before, "shop"])
    assert icestream("namespace", "create", "shop", *local).code == 4
    assert icestream("namespace", "delete", "shop", *local).code == 4
    assert icestream("namespace", "delete", "shop", "--yes", *local) == CommandResult(0, "deleted  shop\n", "")
    assert names(local) == before
    assert icestream("namespace", "policy", "shop", *local).code == 4


def test_a_namespace_with_topics_is_kept(local: tuple[str, str]) -> None:
    icestream("namespace", "create", "shop", *local)
    icestream("topic", "create", "/shop/orders", *local)
    ran = icestream("namespace", "delete", "shop", "--yes", *local)
    assert (ran.code, ran.out) == (4, "")
    assert "shop" in names(local)


def test_its_policies_count_for_its_topics(local: tuple[str, str]) -> None:
    icestream("topic", "create", "/default/orders", "--policy", "max_producers=1", *local)
    ran = icestream("namespace", "policy", "default", "max_producers=7", "max_subscriptions=8", *local)
    assert (ran.code, "max_subscriptions=8" in ran.out) == (0, True)
    rows = icestream("topic", "policy", "/default/orders", *local, "--output", "json").document
    policies = {row["policy"]: (row["topic"], row["effective"]) for row in rows}
    assert (policies["max_producers"], policies["max_subscriptions"]) == ((1, 1), (None, 8))
    icestream("namespace", "policy", "default", "max_subscriptions=none", *local)
    shown = icestream("namespace", "policy", "default", *local, "--output", "json").document["policies"]
    assert {key: value for key, value in shown.items() if value is not None} == {"max_producers": 7}
