"""docs/api.md and the OpenAPI description against the code: every route, every method, every status."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI

from icestream import error_codes, errors, limits
from icestream.internal_api.admin_calls import METHODS
from icestream.internal_api.fence_calls import FENCE_METHODS
from icestream.internal_api.metadata_calls import METADATA_CALLS
from icestream.internal_api.pipeline_calls import PIPELINE_METHODS
from icestream.lake.api_app import build_app
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from icestream.server.settings_changes import APPLIED
from tests.tidy.tree import read, report

PAGE = read("docs/api.md")
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)]


@pytest.fixture
def described() -> Any:
    return build_app(LinkKeeper(Path("none"), "test", SystemClock()), "127.0.0.1").openapi()


@pytest.fixture
def routes(described: Any) -> set[str]:
    return {f"{method.upper()} {path}" for path, found in described["paths"].items() for method in found}


def test_every_route_is_on_the_page(routes: set[str]) -> None:
    shown = set(re.findall(r"^\| `((?:GET|POST|PUT|PATCH|DELETE) /api/v1/\S+)` \|", PAGE, flags=re.MULTILINE))
    assert len(routes) > 25
    assert not routes - shown, report("docs/api.md does not list:", sorted(routes - shown))
    assert not shown - routes, report("docs/api.md lists what is not there:", sorted(shown - routes))


def test_every_route_has_words_an_answer_and_a_problem(described: Any) -> None:
    for path, found in described["paths"].items():
        for method, operation in found.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["tags"], where
            answers = set(operation["responses"])
            assert answers <= {"200", "201", "204", "default"}, where
            problem = operation["responses"]["default"]["content"]["application/problem+json"]
            assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}, where


def test_the_description_is_openapi(described: Any) -> None:
    found = OpenAPI.model_validate(described)
    assert found.openapi.startswith("3.")
    operations = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(set(operations)) == len(operations), "programs name functions after them"


def test_the_description_refers_only_to_what_it_holds(described: Any) -> None:
    text = json.dumps(described)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(described["components"]["schemas"])
    assert "ValidationError" not in text


def test_what_was_refused_for_now_is_never_the_clients_mistake() -> None:
    for kind in KINDS:
        status = error_codes.http_status(kind("x"))
        assert (status == 429 or status >= 500) if kind.retryable else status != 503, kind


def test_every_local_method_is_on_the_page() -> None:
    table = PAGE[PAGE.index("| local method |") :]
    shown = {
        name for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert shown == {*METHODS, *METADATA_CALLS, *PIPELINE_METHODS, *FENCE_METHODS}


def test_every_setting_that_counts_at_once_is_on_the_page() -> None:
    names = {path.rpartition(".")[2] for path in APPLIED}
    assert not [name for name in names if f"{name}`" not in PAGE]


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    assert f"1 to {limits.API_PAGE_MAX}, {limits.API_PAGE_DEFAULT} when it is left out" in PAGE
    assert f"at most {limits.API_BODY_BYTES_MAX // 1024} KiB" in PAGE
    assert f"may have {limits.LOCAL_CALL_BYTES_MAX // 2**20} MiB" in PAGE
