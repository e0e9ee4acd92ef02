"""Every declared admin call is served, and HTTP API, command line and documents have no fields of their own."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.routing import APIRoute

from icestream.admin_api import (
    backup_api,
    cluster_api,
    mqtt_api,
    namespace_api,
    node_api,
    security_api,
    subscription_api,
    table_api,
    topic_api,
)
from icestream.admin_api.admin_call import Answer, answer_document
from icestream.admin_api.all_calls import ADMIN_CALLS, LOCAL_CALLS
from icestream.cli.output import columns_of
from icestream.frontends.native.public_calls import CALLS
from icestream.internal_api.admin_calls import AdminCalls
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.erasure_calls import ErasureCalls
from icestream.internal_api.implementation import implemented_calls
from icestream.internal_api.mqtt_calls import MqttCalls
from icestream.internal_api.security_calls import SecurityCalls
from icestream.internal_api.session_calls import SessionCalls
from icestream.lake.http_models import model_of
from icestream.lake.routes import (
    backup_endpoints,
    lake_endpoints,
    mqtt_endpoints,
    namespace_endpoints,
    node_endpoints,
    security_endpoints,
    subscription_endpoints,
    topic_endpoints,
    verify_endpoints,
)
from tests.tidy.tree import read, report

MODULES = (
    namespace_api, topic_api, subscription_api, node_api, cluster_api, table_api, security_api, mqtt_api, backup_api,
)  # fmt: skip
ROUTERS = (
    namespace_endpoints.router,
    topic_endpoints.all_topics_router,
    topic_endpoints.router,
    subscription_endpoints.router,
    node_endpoints.router,
    lake_endpoints.router,
    verify_endpoints.router,
    security_endpoints.router,
    mqtt_endpoints.router,
    backup_endpoints.router,
)
ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
DECLARED = {
    name
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct)
} | {"PolicyValues"}


def test_every_declared_call_is_implemented_once() -> None:
    local = [
        name
        for group in (AdminCalls, ClusterCalls, SessionCalls, SecurityCalls, MqttCalls, ErasureCalls)
        for name in implemented_calls(group)
    ]
    assert sorted(local) == sorted(LOCAL_CALLS)
    public = set(ADMIN_CALLS) - LOCAL_CALLS
    assert public <= {*CALLS, node_api.PORTS.name}


def test_every_answer_of_the_http_api_is_declared() -> None:
    for route in ROUTES:
        if route.response_model is None:
            assert route.status_code == 204 or route.path.endswith("/verify/lines"), route.path
            continue
        name = re.sub(r"^Listing\[(\w+)\]$", r"\1", route.response_model.__name__)
        assert name in DECLARED, f"{route.path} answers {name}"


def test_every_body_of_the_http_api_is_declared() -> None:
    bodies = [route.body_field for route in ROUTES if route.body_field is not None]
    assert len(bodies) > 10
    for body in bodies:
        assert body.field_info.annotation.__name__ in DECLARED, body


def test_every_field_of_a_body_is_in_the_documents() -> None:
    page = read("docs/api.md")
    fields = {
        f"{route.path}: {name}"
        for route in ROUTES
        if route.body_field is not None
        for name in _fields(route.body_field.field_info.annotation)
        if f"`{name}`" not in page
    }
    assert not fields, report("docs/api.md does not name these fields of bodies:", sorted(fields))


def test_every_public_call_is_in_the_documents() -> None:
    page = read("docs/protocol.md")
    assert not [name for name in set(ADMIN_CALLS) - LOCAL_CALLS if f"`{name}`" not in page]


def test_a_column_of_the_command_line_is_a_field_of_its_answer() -> None:
    assert columns_of(topic_api.TopicSummary, "topic", "lag") == ("topic", "lag")
    assert columns_of(topic_api.TopicSummary, "topic", "age", computed=("age",)) == ("topic", "age")
    with pytest.raises(LookupError, match="TopicSummary has no field rate"):
        columns_of(topic_api.TopicSummary, "topic", "rate")


def test_a_native_answer_has_every_field_with_null_for_an_unset_policy() -> None:
    document = answer_document(namespace_api.NamespaceDetails(namespace="shop", policies=_policies(max_producers=3)))
    assert document["namespace"] == "shop"
    assert document["policies"]["max_producers"] == 3
    assert document["policies"]["max_publish_rate"] is None
    assert list(document["policies"]) == list(_fields(model_of(topic_api.PolicyValues)))


def test_the_model_of_an_answer_ignores_unknown_fields_and_that_of_a_request_refuses_them() -> None:
    answers = [model_of(value) for value in _structs() if issubclass(value, Answer)]
    requests = [model_of(value) for value in _structs() if not issubclass(value, Answer)]
    assert {model.model_config["extra"] for model in answers} == {"ignore"}
    assert {model.model_config["extra"] for model in requests} == {"forbid"}


def test_a_declaration_does_not_load_a_web_framework() -> None:
    sources = "".join(path.read_text() for path in Path(node_api.__file__).parent.glob("*.py"))
    assert not re.search(r"^(?:from|import) (?:fastapi|pydantic|starlette)", sources, flags=re.MULTILINE)


def _structs() -> list[type[msgspec.Struct]]:
    return [
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    ]


def _policies(**values: Any) -> Any:
    return topic_api.PolicyValues(**values)


def _fields(model: Any) -> typing.Iterable[str]:
    return model.model_fields
