"""Errors of the API as problem documents (RFC 9457), built from the error tree and its table (error_codes.py).

type        urn:icestream:error:<code>; stable, for programs
title       the kind of error
status      same as the HTTP status
detail      what happened; instance: the path of the request
code, hint, retryable     as in every other protocol
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, compile_path
from starlette.types import Scope

from icestream import error_codes, errors
from icestream.admin_api.admin_call import Answer
from icestream.model.field_metadata import Doc
from icestream.observability.log import get_logger

MEDIA_TYPE: Final = "application/problem+json"
# Codes of errors of HTTP itself, without a call of the broker.
_CODES: Final = {
    400: "invalid",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
    421: "wrong_host",
}
_log = get_logger("api")


class Problem(Answer):
    """The body of every error response (RFC 9457)."""

    type: Annotated[str, Doc("`urn:icestream:error:<code>`")]
    title: str
    status: int
    detail: Annotated[str, Doc("What happened.")]
    instance: str
    code: Annotated[str, Doc("As in the native protocol.")]
    hint: Annotated[str, Doc("What to do about it; may be empty.")]
    retryable: Annotated[bool, Doc("Whether a retry may succeed.")]


def problem(
    status: int, code: str, title: str, detail: str, path: str, hint: str = "", *, retryable: bool = False
) -> Response:
    body = Problem(f"urn:icestream:error:{code}", title, status, detail, path, code, hint, retryable)
    headers = {"Retry-After": "1"} if retryable else {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)


def error_problem(error: errors.IcestreamError, path: str, query: str = "") -> Response:
    """The problem document of an error. A topic of another node is a redirect (307: method and body are kept) to that
    node, if its address is known."""
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).capitalize()
    status = error_codes.http_status(error)
    owner_url = error.details.get("http") if isinstance(error, errors.TopicElsewhere) else None
    if not owner_url:
        return problem(status, error.code, title, error.message, path, error.hint, retryable=error.retryable)
    redirect = problem(307, error.code, title, error.message, path, error.hint)
    redirect.headers["Location"] = f"{owner_url}{quote(path)}{'?' if query else ''}{query}"
    return redirect


def status_problem(status: int, detail: str, path: str) -> Response:
    phrase = HTTPStatus(status).phrase
    return problem(status, _CODES.get(status, "http"), phrase, detail or phrase, path)


def method_problem(method: str, allowed: Sequence[str], path: str) -> Response:
    """The error for a path that exists for other methods only."""
    methods = ", ".join(allowed)
    response = status_problem(405, f"method {method} not allowed; allowed: {methods}", path)
    response.headers["Allow"] = methods
    return response


def allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods of all routes with the path of this request; the framework only knows those of one route.

    Routes of the API are in its description (OpenAPI), those of the process (/livez, …) are not.
    """
    matching = [route for route in app.routes if route.matches(scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
    for template, operations in app.openapi()["paths"].items():
        if _pattern(template).match(scope["path"]):
            methods.update(method.upper() for method in operations)
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


@lru_cache(256)
def _pattern(template: str) -> re.Pattern[str]:
    return compile_path(template)[0]


def validation_problem(error: RequestValidationError, path: str) -> Response:
    """The error for an invalid request: every fault with its location; never the value, which may be a secret."""
    faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    hint = "see /api/v1/openapi.json for the format of requests"
    return error_problem(errors.InvalidInput("; ".join(faults)[:1000], hint=hint), path)


def install(app: FastAPI) -> None:
    """Makes the application respond to every exception with a problem document."""

    async def on_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.IcestreamError)
        return error_problem(error, request.url.path, request.url.query)

    async def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return validation_problem(error, request.url.path)

    async def on_status(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return method_problem(request.method, allowed_methods(app, request.scope), request.url.path)
        response = status_problem(error.status_code, str(error.detail), request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def on_internal_error(request: Request, error: Exception) -> Response:
        _log.error("internal error in API request", path=request.url.path, exc_info=error)
        return error_problem(errors.IcestreamError("internal error; see the log of the lake process"), request.url.path)

    app.add_exception_handler(errors.IcestreamError, on_error)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_status)
    app.add_exception_handler(Exception, on_internal_error)
