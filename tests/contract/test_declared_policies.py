"""Every declared topic policy is in calls, HTTP API, OpenAPI, command line, Danube, settings and documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream import connect_sync, testing
from icestream.broker import records
from icestream.frontends.danube.admin_handlers import danube_policies
from icestream.lake.api_app import build_app
from icestream.model.field_metadata import number_fields
from icestream.model.topic_policies import POLICIES, PolicyValues, policies_document
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.settings import KEYS
from tests.support.command_line import icestream
from tests.tidy.tree import read, report

NUMBER = 65_536  # allowed by every number
TEXTS = {
    "partitioning": "day",
    "compression": "zstd:9",
    "clustering": "zorder(key,publish_time)",
}  # values of policies without enumerated words


def example(name: str) -> int | str:
    words = POLICIES[name].words
    if words is not None:
        return next(iter(words)).value
    return NUMBER if name in number_fields(PolicyValues) else TEXTS[name]


EXAMPLES: dict[str, Any] = {name: example(name) for name in POLICIES}


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.TestBroker]:
    with testing.broker(storage="disk") as server:
        yield server


def test_every_policy_is_stored() -> None:
    stored = records.encode(records.NamespaceRecord(PolicyValues(**EXAMPLES)))
    assert json.loads(stored) == {"policies": EXAMPLES}
    assert policies_document(records.decode(records.NamespaceRecord, "/n", stored).policies) == EXAMPLES


def test_every_policy_can_be_set_by_a_client(broker: testing.TestBroker) -> None:
    with connect_sync(broker.address) as client:
        client.create_topic("/default/by-client", **EXAMPLES)
        assert client.topic_policies("/default/by-client").effective == EXAMPLES
        unset = client.change_topic_policies("/default/by-client", **dict.fromkeys(POLICIES))
        assert unset.policies == dict.fromkeys(POLICIES)


@pytest.mark.parametrize("target", [("topic", "/default/by-cli"), ("namespace", "by-cli")])
def test_every_policy_can_be_set_on_the_command_line(broker: testing.TestBroker, target: tuple[str, str]) -> None:
    noun, name = target
    local = ("--broker", str(broker.node.settings.local_socket), "--output", "json")
    assert icestream(noun, "create", name, *local).code == 0
    ran = icestream(noun, "policy", name, *(f"{key}={value}" for key, value in EXAMPLES.items()), *local)
    assert ran.code == 0, ran.err
    shown = ran.document
    values = {row["policy"]: row["topic"] for row in shown} if noun == "topic" else shown["policies"]
    assert values == EXAMPLES
    assert icestream(noun, "policy", name, *(f"{key}=" for key in POLICIES), *local).code == 0


def test_every_policy_is_in_openapi() -> None:
    described = build_app(LinkKeeper(Path("none"), "test", SystemClock()), "127.0.0.1").openapi()
    properties = described["components"]["schemas"][PolicyValues.__name__]["properties"]
    assert list(properties) == list(POLICIES)
    for name, policy in POLICIES.items():
        assert properties[name]["description"].startswith(policy.description[:-1])
        value, null = properties[name]["anyOf"]
        assert null == {"type": "null"}
        assert value["type"] == ("integer" if name in number_fields(PolicyValues) else "string")
        assert value.get("enum", []) == [*(policy.words or ())]


def test_danube_shows_the_policies_that_it_has() -> None:
    shown = danube_policies(PolicyValues(**EXAMPLES))
    assert shown == {policy.danube: EXAMPLES[name] for name, policy in POLICIES.items() if policy.danube}
    assert len(shown) == 7


def test_the_setting_of_an_unset_policy_has_its_values() -> None:
    for policy in POLICIES.values():
        if policy.setting and policy.words:
            assert KEYS[policy.setting].allowed == " or ".join(policy.words), policy.setting
            assert policy.setting in policy.unset


def test_every_policy_is_in_the_documents() -> None:
    rows = [
        f"| `{name}` | {policy.description} | {policy.unset} | {policy.applies} |" for name, policy in POLICIES.items()
    ]
    documented = re.findall(r"^\| `(?:\w+)` \|.*\|$", _section("docs/api.md", "### Policies"), flags=re.MULTILINE)
    assert documented == rows, report("the table under `### Policies` of docs/api.md is to be:", rows)
    delivery = read("docs/delivery.md")
    assert not [name for name in POLICIES if f"`{name}`" not in delivery]


def _section(page: str, heading: str) -> str:
    text = read(page)
    start = text.index(f"\n{heading}\n")
    return text[start : text.index("\n## ", start)]
