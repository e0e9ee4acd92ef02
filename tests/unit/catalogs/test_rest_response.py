"""Responses of a server of Iceberg's REST protocol, and the errors that they become."""

from __future__ import annotations

import json

import pytest

from icestream import errors
from icestream.catalogs.rest_response import Expected, RestResponse, decode_response

EXPECTED: Expected = {404: errors.UnknownTable, 409: errors.CommitConflict}


def refusal(status: int, kind: str | None = "SomeException", is_own: bool = False, **more: object) -> Exception:
    error = {"message": "words", "type": kind, "code": status, **more}
    body = json.dumps({"error": error}).encode() if kind is not None else b"<html>no</html>"
    with pytest.raises(errors.IcestreamError) as caught:
        decode_response(RestResponse(status, body), EXPECTED, "http://there", is_own)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "BadRequestException", errors.InvalidInput),
        (401, "NotAuthorizedException", errors.AccessDenied),
        (401, None, errors.AccessDenied),
        (403, "ForbiddenException", errors.AccessDenied),
        (404, "NoSuchTableException", errors.UnknownTable),
        (404, "NoSuchNamespaceException", errors.UnknownNamespace),
        (404, "Other", errors.UnknownTable),
        (404, None, errors.UnexpectedAnswer),
        (405, "X", errors.InvalidInput),
        (409, "CommitFailedException", errors.CommitConflict),
        (409, "AlreadyExistsException", errors.AlreadyExists),
        (409, "NamespaceNotEmptyException", errors.NotEmpty),
        (419, "AuthenticationTimeoutException", errors.AccessDenied),
        (422, "X", errors.Contradiction),
        (302, None, errors.UnexpectedAnswer),
    ],
)
def test_a_refusal_is_definite(status: int, kind: str | None, expected: type[errors.IcestreamError]) -> None:
    assert type(refusal(status, kind)) is expected


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 599])
@pytest.mark.parametrize("kind", ["CommitStateUnknownException", "CommitFailedException", None])
def test_every_5xx_is_ambiguous(status: int, kind: str | None) -> None:
    error = refusal(status, kind)
    assert isinstance(error, errors.StorageUnavailable)
    assert error.is_ambiguous


def test_later_is_not_ambiguous() -> None:
    error = refusal(429, None)
    assert isinstance(error, errors.StorageUnavailable)
    assert not error.is_ambiguous


def test_our_own_catalog_speaks_of_topic_tables_and_details() -> None:
    assert type(refusal(403, "ForbiddenException", is_own=True)) is errors.TopicTableConflict
    conflict = refusal(409, "CommitFailedException", details={"tables": [{"table": "a"}]})
    assert isinstance(conflict, errors.CommitConflict)
    assert conflict.details == {"tables": [{"table": "a"}]}


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"\xff", b'"x"'])
def test_a_success_without_a_body_is_ambiguous(body: bytes) -> None:
    with pytest.raises(errors.StorageUnavailable) as caught:
        decode_response(RestResponse(200, body), EXPECTED, "there")
    assert caught.value.is_ambiguous
    assert decode_response(RestResponse(204, b""), EXPECTED, "there") == {}


@pytest.mark.parametrize(
    "body", [b"[]", b'{"error": 1}', b'{"error": {"type": 1, "message": [], "details": 2}}', b"\x00"]
)
def test_hostile_bodies_become_icestream_errors(body: bytes) -> None:
    with pytest.raises(errors.IcestreamError):
        decode_response(RestResponse(400, body), EXPECTED, "there")


def test_long_messages_are_truncated_to_one_line() -> None:
    error = refusal(400, "X", message="a\n" * 10_000)
    assert len(str(error)) < 400
    assert "\n" not in str(error)
