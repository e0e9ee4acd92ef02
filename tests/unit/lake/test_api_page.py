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
from icestream.admin_api.all_calls import LOCAL_CALLS
from icestream.internal_api.archive_calls import ARCHIVE_METHODS
from icestream.internal_api.backup_calls import BACKUP_METHODS
from icestream.internal_api.erasure_calls import ERASURE_METHODS
from icestream.internal_api.fence_calls import FENCE_METHODS
from icestream.internal_api.metadata_calls import METADATA_METHODS
from icestream.internal_api.pipeline_calls import PIPELINE_METHODS
from icestream.internal_api.restore_calls import RESTORE_METHODS
from icestream.lake.api_app import build_app
from icestream.processes.node.settings_changes import APPLIED
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SystemClock
from tests.tidy.tree import read, report

PAGE = read("docs/api.md")
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)]


@pytest.fixture
def described() -> Any:
    return build_app(LinkKeeper(Path("none"), "test", SystemClock()), "127.0.0.1").openapi()


@pytest.fixture
def routes(described: Any) -> set[str]:
    return {f"{method.upper()} {path}" for path, operations in described["paths"].items() for method in operations}


def test_every_route_is_on_the_page(routes: set[str]) -> None:
    shown = set(re.findall(r"^\| `((?:GET|POST|PUT|PATCH|DELETE) /api/v1/\S+)` \|", PAGE, flags=re.MULTILINE))
    assert len(routes) > 25
    assert not routes - shown, report("docs/api.md does not list:", sorted(routes - shown))
    assert not shown - routes, report("docs/api.md lists what is not there:", sorted(shown - routes))


def test_every_route_has_a_description_an_answer_and_a_problem(described: Any) -> None:
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["tags"], where
            answers = set(operation["responses"])
            assert answers <= {"200", "201", "204", "default"}, where
            problem = operation["responses"]["default"]["content"]["application/problem+json"]
            assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}, where


def test_the_description_is_openapi(described: Any) -> None:
    document = OpenAPI.model_validate(described)
    assert document.openapi.startswith("3.")
    operations = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert len(set(operations)) == len(operations), "programs name functions after them"


def test_the_description_refers_only_to_its_own_schemas(described: Any) -> None:
    text = json.dumps(described)
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(described["components"]["schemas"])
    assert "ValidationError" not in text


def test_retryable_refusals_are_never_client_errors() -> None:
    for kind in KINDS:
        status = error_codes.http_status(kind("x"))
        assert (status == 429 or status >= 500) if kind.retryable else status != 503, kind


def test_every_local_method_is_on_the_page() -> None:
    table = PAGE[PAGE.index("| local method |") :]
    shown = {
        name for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    declared = (
        METADATA_METHODS,
        PIPELINE_METHODS,
        ERASURE_METHODS,
        BACKUP_METHODS,
        ARCHIVE_METHODS,
        RESTORE_METHODS,
        FENCE_METHODS,
    )
    assert shown == {*LOCAL_CALLS, *(name for names in declared for name in names)}


def test_every_online_setting_is_on_the_page() -> None:
    names = {path.rpartition(".")[2] for path in APPLIED}
    assert not [name for name in names if f"{name}`" not in PAGE]


def test_the_bounds_on_the_page_match_the_code() -> None:
    assert f"1 to {limits.API_PAGE_MAX}, {limits.API_PAGE_DEFAULT} when it is left out" in PAGE
    assert f"at most {limits.API_BODY_BYTES_MAX // 1024} KiB" in PAGE
    assert f"may have {limits.LOCAL_CALL_BYTES_MAX // 2**20} MiB" in PAGE
