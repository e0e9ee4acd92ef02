"""What the table of a topic is called: two topics never share a name, in any catalog."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.catalogs.topic_table_name import single_namespace_name, table_for_topic
from icestream.iceberg.identifier import Identifier
from icestream.model.topic_name import TopicName
from icestream.processes.component_options import fixed_namespace
from icestream.settings import Settings

PART = st.text(st.sampled_from("abAB01_-é"), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("/default/orders", "orders"),
        ("/shop/orders", "shop__orders"),
        ("/shop/my_orders", "shop__my_orders"),
        ("/shop/My-Orders", "shop__my_orders__de46b0b40a2c1b2c"),
        ("/default/a__b", "default__a_b__"),
    ],
)
def test_names_in_one_namespace(topic: str, name: str) -> None:
    table_name = single_namespace_name(TopicName.parse(topic))
    assert table_name.startswith(name.rpartition("__")[0] if name.count("__") > 1 else name)


@given(st.lists(st.tuples(PART, PART), min_size=2, max_size=30, unique=True))
def test_no_two_topics_share_a_table_name(parts: list[tuple[str, str]]) -> None:
    topics = [TopicName(*part) for part in parts]
    names = [single_namespace_name(topic) for topic in topics]
    assert len(set(names)) == len(topics)
    assert all(re.fullmatch(r"[a-z0-9_]{1,255}", name) for name in names)


def test_the_longest_names_fit_into_glue() -> None:
    assert len(single_namespace_name(TopicName("n" * 255, "t" * 255))) <= 255
    assert single_namespace_name(TopicName("n" * 255, "t" * 255)) != single_namespace_name(
        TopicName("n" * 255, "t" * 254)
    )


def test_table_locations_follow_the_settings() -> None:
    topic = TopicName.parse("/shop/Orders")
    assert table_for_topic(topic, None) == Identifier(("shop",), "Orders")
    assert table_for_topic(TopicName.parse("/shop/orders"), ("danube",)) == Identifier(("danube",), "shop__orders")


def test_the_fixed_namespace() -> None:
    def settings(**iceberg: object) -> Settings:
        return Settings.model_validate({"storage": {"iceberg_config": iceberg}})

    assert fixed_namespace(settings()) is None
    assert fixed_namespace(settings(namespace="a.b")) == ("a", "b")
    assert fixed_namespace(settings(namespace="a/b")) == ("a", "b")
    assert fixed_namespace(settings(catalog={"type": "glue", "database": "d"})) == ("d",)
