"""Errors as HTTP says them: problem documents (RFC 9457), made from the one tree and its table (said.SAID).

type        urn:icestream:error:<code>; stable, for programs
title       the kind of error in words
status      as in the head of the answer
detail      what happened; instance: the path that was asked for
code, hint, retryable     as everywhere else
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, compile_path
from starlette.types import Scope

from icestream import error_codes, errors
from icestream.observability.log import get_logger

MEDIA_TYPE: Final = "application/problem+json"
# What HTTP itself refuses, before anybody asks the broker.
_CODES: Final = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    421: "wrong_host",
}
_log = get_logger("api")


def problem(
    status: int, code: str, title: str, detail: str, path: str, hint: str = "", *, retryable: bool = False
) -> Response:
    body: dict[str, Any] = {
        "type": f"urn:icestream:error:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        "hint": hint,
        "retryable": retryable,
    }
    headers = {"Retry-After": "1"} if retryable else {}
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def of_error(error: errors.IcestreamError, path: str, query: str = "") -> Response:
    """What another node must answer is sent there, where its address is known: method and body stay."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).capitalize()
    status = error_codes.http_status(error)
    place = error.details.get("http") if isinstance(error, errors.TopicElsewhere) else None
    if not place:
        return problem(status, error.code, title, error.message, path, error.hint, retryable=error.retryable)
    found = problem(307, error.code, title, error.message, path, error.hint)
    found.headers["Location"] = f"{place}{quote(path)}{'?' if query else ''}{query}"
    return found


def of_status(status: int, detail: str, path: str) -> Response:
    phrase = HTTPStatus(status).phrase
    return problem(status, _CODES.get(status, "http"), phrase, detail or phrase, path)


def of_method(method: str, allowed: Sequence[str], path: str) -> Response:
    """A path that is there for other methods."""
    listed = ", ".join(allowed)
    refused = of_status(405, f"{method} is not allowed here; allowed: {listed}", path)
    refused.headers["Allow"] = listed
    return refused


def allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """Of all routes with the path of this request: the framework names those of one route only. The description of the
    API has its routes; those of the process are not in it."""
    matching = [route for route in app.routes if route.matches(scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    for template, operations in app.openapi()["paths"].items():
        if _pattern(template).match(scope["path"]):
            methods.update(method.upper() for method in operations)
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


@lru_cache(256)
def _pattern(template: str) -> re.Pattern[str]:
    return compile_path(template)[0]


def of_validation(error: RequestValidationError, path: str) -> Response:
    """Everything that is wrong with the request, each with its place; never the value, which may be a secret."""
    found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return of_error(errors.InvalidInput("; ".join(found)[:1000], hint="the API's description lists what fits"), path)


def install(app: FastAPI) -> None:
    async def on_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.IcestreamError)
        return of_error(error, request.url.path, request.url.query)

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return of_validation(error, request.url.path)

    async def on_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return of_method(request.method, allowed_methods(app, request.scope), request.url.path)
        found = of_status(error.status_code, str(error.detail), request.url.path)
        found.headers.update(error.headers or {})
        return found

    async def on_mistake(request: Request, error: Exception) -> Response:
        _log.error("a request failed", path=request.url.path, exc_info=error)
        return of_error(errors.IcestreamError("this is a mistake of ours; the log says more"), request.url.path)

    app.add_exception_handler(errors.IcestreamError, on_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(Exception, on_mistake)
