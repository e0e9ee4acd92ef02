"""What `import icestream` gives: every name, typed, and hardly any time."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, Final

import pytest

import icestream
from icestream.client import public


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_slow() -> None:
    loaded = run("import sys, icestream; print(*sys.modules)").split()
    heavy = {"asyncio", "msgspec", "pydantic", "zstandard", "structlog", "icestream.processes", "icestream.limits"}
    assert heavy & set(loaded) == set()


def test_the_client_does_not_load_the_broker_or_arrow() -> None:
    loaded = run("import sys, icestream; icestream.connect; icestream.connect_sync; print(*sys.modules)").split()
    broker = ("icestream.broker", "icestream.processes", "icestream.wal")
    assert [name for name in loaded if name.startswith(broker)] == []
    assert {"pyarrow", "pydantic", "icestream.metadata"} & set(loaded) == set()


@pytest.mark.parametrize("name", public.NAMES)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(icestream, name) is not None
    assert name in dir(icestream)
    assert name in icestream.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        icestream.nonsense  # noqa: B018  # looking it up is the test


def test_types_of_the_public_names_are_known_to_type_checkers() -> None:
    assert set(icestream.__all__) == {*public.NAMES, "__dir__", "__getattr__"}


# --- what each class shows --------------------------------------------------------------------------------------------

SURFACE: Final[dict[str, set[str]]] = {
    "ClientTls": {"ca", "certificate", "context", "key", "server_name"},
    "Client": {
        "address", "call", "change_topic_policies", "close", "connections", "create_topic", "delete_subscription",
        "delete_topic", "describe_topic", "is_connected", "list_topics", "producer", "subscribe", "topic_policies",
    },
    "Producer": {"close", "error", "flush", "name", "pending_bytes", "ready", "send", "shards", "topic"},
    "Subscription": {
        "ack_through", "batches", "close", "consumer", "error", "flush", "gaps", "is_active", "name", "positions",
        "seek", "stalls", "take", "topic", "waiting_messages",
    },
    "Message": {
        "ack", "append_time", "append_time_us", "content_type", "headers", "id", "is_current", "key", "nack", "offset",
        "payload", "producer_name", "publish_time", "publish_time_us", "redelivery_count", "schema_id",
        "schema_version", "shard", "topic", "value",
    },
    "MessageId": {"offset", "shard", "topic"},
    "Gap": {"end", "reason", "shard", "start", "state"},
    "Stall": {"hint", "kind", "offset", "reason", "shard"},
    "TopicInfo": {"dispatch", "producers", "shards", "subscriptions", "topic"},
    "TopicPolicies": {"effective", "policies"},
    "ArrowBatch": {"ack", "data", "nack"},
    "BlockingClient": {
        "change_topic_policies", "close", "create_topic", "delete_subscription", "delete_topic", "describe_topic",
        "is_connected", "list_topics", "open", "producer", "subscribe", "topic_policies",
    },
    "BlockingProducer": {"close", "flush", "name", "send", "send_all", "topic"},
    "BlockingSubscription": {
        "ack_through", "batches", "close", "consumer", "flush", "gaps", "name", "receive", "seek", "stalls", "topic",
    },
}  # fmt: skip


def names_of(shown: object) -> set[str]:
    """The names that autocompletion offers, without the methods of tuples."""
    return {name for name in dir(shown) if not name.startswith("_")} - {"count", "index"}


def test_every_public_class_is_pinned() -> None:
    classes = {name for name in public.NAMES if inspect.isclass(getattr(icestream, name))}
    assert classes == set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_a_class_shows_only_its_public_members(name: str) -> None:
    assert names_of(getattr(icestream, name)) == SURFACE[name]


@pytest.mark.asyncio
async def test_an_object_shows_no_more_than_its_class() -> None:
    async with (
        icestream.testing.broker() as broker,
        icestream.connect(broker.address) as client,
        client.producer("/default/orders") as producer,
        client.subscribe("/default/orders", "s") as messages,
    ):
        await producer.send(b"one")
        batch = await anext(messages.batches())
        batch.nack()
        message = await anext(messages)
        for shown in (client, producer, messages, message, batch):
            assert names_of(shown) == SURFACE[type(shown).__name__]


def test_a_blocking_object_shows_no_more_than_its_class() -> None:
    with (
        icestream.testing.broker() as broker,
        icestream.connect_sync(broker.address) as client,
        client.producer("/default/orders") as producer,
        client.subscribe("/default/orders", "s") as messages,
    ):
        producer.send(b"one")
        message = messages.receive(timeout=20)
        for shown in (client, producer, messages):
            assert names_of(shown) == SURFACE[type(shown).__name__]
        assert names_of(message) == SURFACE["Message"]


def members() -> list[tuple[str, Any]]:
    shown: list[tuple[str, Any]] = [("connect", icestream.connect), ("connect_sync", icestream.connect_sync)]
    testing = {"TestBroker": icestream.testing.TestBroker, "broker": icestream.testing.broker}
    classes = {name: getattr(icestream, name) for name in SURFACE}
    raised = {f"errors.{kind.__name__}": kind for kind in icestream.errors.BY_CODE.values()}
    for name, kind in {**classes, **testing}.items():
        shown.append((name, kind))
        if inspect.isclass(kind):
            shown += [(f"{name}.{member}", inspect.getattr_static(kind, member)) for member in names_of(kind)]
    return [*shown, *raised.items()]  # docs/errors.md has what belongs to all of them


@pytest.mark.parametrize(("name", "member"), members(), ids=[name for name, _ in members()])
def test_every_public_name_has_a_docstring_of_its_own(name: str, member: Any) -> None:
    text = member.__doc__ or ""
    assert len(text.split()) >= 3, f"{name}: {text!r}"
    assert not text.startswith("Alias for field number"), name
    assert text[0].isupper() or text[0] == "`", f"{name}: {text!r}"


def test_connect_explains_each_of_its_arguments() -> None:
    text = icestream.connect.__doc__ or ""
    assert [name for name in inspect.signature(icestream.connect).parameters if f"`{name}`" not in text] == []
