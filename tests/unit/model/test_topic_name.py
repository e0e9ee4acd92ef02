"""Names of topics and their shards: what is taken, and that everything else is refused with our error."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.topic_name import TopicName, check_name, check_namespace, parse_shard

LONGEST = "x" * limits.NAME_BYTES_MAX
PARTS = st.from_regex(r"[\w-]{1,20}", fullmatch=True)


@pytest.mark.parametrize(
    "text",
    ["/default/orders", "/a/b", "/_/-", "/ß/日本語", "/0/1", f"/{LONGEST}/{LONGEST}", "/a/b-part-", "/a/b-part-01"],
)
def test_valid_names_are_accepted(text: str) -> None:
    assert str(TopicName.parse(text)) == text
    assert parse_shard(text) == (TopicName.parse(text), None)


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//", "///", "a", "/a", "a/b", "/a/", "//b", "/a/b/", "/a/b/c", "a/b/c", " /a/b", "/a/b ", "/a /b",
        "/a/b\n", "\n/a/b", "/a/b\x00", "/a/.", "/../b", "/a/b.c", "/a/b*", "/a/b%2fc", "/a\\b", "/a/b:1",
        "/a/b?", "/a/b#",
        "/a/\ud800", "/\udfff/b", "/a/e\u0301", "/a/\u200b", "/a/\u202eb", "/a/🦀", f"/a/{LONGEST}x", f"/{LONGEST}x/b",
        "/a/" + "ß" * (limits.NAME_BYTES_MAX // 2 + 1), "/" * 100_000, "/a/" + "b" * 1_000_000,
    ],
)  # fmt: skip
def test_names_that_are_refused(text: str) -> None:
    for parse in (TopicName.parse, parse_shard):
        with pytest.raises(errors.InvalidInput) as caught:
            parse(text)
        assert caught.value.hint
        assert len(str(caught.value)) < 400, "an error does not repeat all of a hostile name"


@given(st.text())
@example("/a/b-part-1")
@example("/a/b-part-1-part-2")
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name, shard = parse_shard(text)
    except errors.InvalidInput:
        return
    assert (f"{name}-part-{shard}" if shard is not None else str(name)) == text
    assert TopicName.parse(str(name)) == name


@given(PARTS, PARTS, st.integers(0, 9_999), st.integers(1, 10_000))
def test_the_name_of_a_shard_leads_back_to_it(namespace: str, name: str, shard: int, shards: int) -> None:
    try:
        topic = TopicName.parse(f"/{namespace}/{name}")
    except errors.InvalidInput:
        return
    expected = (topic, None) if shards == 1 else (topic, shard)
    assert parse_shard(topic.shard_name(shard, shards)) == expected


def test_shards_of_the_longest_topic_have_names() -> None:
    topic = TopicName.parse(f"/{LONGEST}/{LONGEST}")
    assert parse_shard(topic.shard_name(4_000_000_000, 4_000_000_001)) == (topic, 4_000_000_000)
    assert len(topic.shard_name(4_000_000_000, 4_000_000_001).encode()) <= limits.TOPIC_NAME_BYTES_MAX


@pytest.mark.parametrize("text", ["/a/b-part-0", "/a/b-part-17", "/a/b-part-1-part-2"])
def test_no_topic_is_called_like_a_shard(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="shard"):
        TopicName.parse(text)


def test_a_shard_of_a_shard_is_invalid() -> None:
    with pytest.raises(errors.InvalidInput, match="shard"):
        parse_shard("/a/b-part-1-part-2")


@pytest.mark.parametrize("text", ["", "a/b", "a b", ".", "a\n", "\ud800", LONGEST + "x"])
def test_namespaces_that_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="namespace"):
        check_namespace(text)
    assert check_namespace(LONGEST) == LONGEST


@pytest.mark.parametrize("text", ["", "a/b", "/", "a\n", "\x00", "\x7f", "\ud800", "\u200b", LONGEST + "x"])
def test_names_of_consumers_that_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="consumer"):
        check_name("consumer", text)


@pytest.mark.parametrize("text", ["a", "host.example:5000 (1)", "日本語", "..", LONGEST])
def test_valid_consumer_names_are_accepted(text: str) -> None:
    assert check_name("consumer", text) == text


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("orders", "/default/orders"),
        ("/orders", "/default/orders"),
        ("shop/orders", "/shop/orders"),
        ("/shop/orders/", "/shop/orders"),
        ("/a/b/c", None),
        ("", None),
        ("//", None),
        ("or ders", None),
        ("/default/or ders", None),
    ],
)
def test_an_incomplete_name_is_refused_with_a_suggestion(text: str, meant: str | None) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        TopicName.parse(text)
    assert caught.value.hint.startswith(f"do you mean {meant}? " if meant else "a topic is called /namespace/name")
