"""The token endpoint of the catalog, POST /v1/oauth/tokens: OAuth2 as Iceberg's clients speak it.

    grant_type                                        credential of the request             answer
    client_credentials                                a user with its password              a token, as `security
                                                                                            login` makes it
                                                      an account with one of its tokens     that token
    urn:ietf:params:oauth:grant-type:token-exchange   subject_token                         that token
                                                      a Basic header (Spark, whose token    as for client_credentials
                                                      has expired)

client_id and client_secret are fields of the form, or a Basic header. A client_secret without a client_id is a token.
Only a password is exchanged for a new token: one that was made from another would outlive its revocation. `expires_in`
says how long a token is still valid. Errors are OAuth2's, with one text for every credential that is not valid. The
broker delays logins of an address and of a principal (hazard 120); nothing is kept here, and neither passwords nor
tokens are logged.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus

import msgspec

from icestream import errors, limits
from icestream.admin_api.session_api import SessionCredential
from icestream.lake.iceberg.request import IcebergRequest
from icestream.lake.iceberg.responses import IcebergResponse, error_response, token_response
from icestream.lake.request_caller import RequestCallers
from icestream.security.credential import bearer_token

LISTENER: Final = "iceberg"
_CLIENT_CREDENTIALS: Final = "client_credentials"
_TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"
_FORM_FIELDS_MAX: Final = 16
_NO_ACCOUNTS: Final = (
    "this broker has no accounts: configure the client with a `token` of lake.token_file instead of a `credential`; "
    "without lake.token_file it needs neither"
)


class TokenRequest(msgspec.Struct, frozen=True):
    """What a client asks with: the credential, and the account that it must belong to (empty: any)."""

    credential: SessionCredential
    account: str = ""


async def issue_token(callers: RequestCallers, request: IcebergRequest, address: str) -> IcebergResponse:
    """Answers a request for a token. Raises ConnectionLost and Refused, which a client may repeat."""
    if request.method != "POST":
        return token_response({"error": "invalid_request", "error_description": "POST is the only method"}, 405)
    try:
        token_request = parse_token_request(request)
    except errors.InvalidInput as error:
        return token_response({"error": error.hint, "error_description": error.message}, 400)
    except errors.Unauthenticated:
        return _invalid_client()
    password = token_request.credential.password
    try:
        # A password is verified once, by the login itself.
        credential = SessionCredential() if password else token_request.credential
        caller = await callers.open(credential, address, LISTENER)
    except errors.Unauthenticated:
        return _invalid_client()
    try:
        if not caller.is_secured:
            return token_response({"error": "unsupported_grant_type", "error_description": _NO_ACCOUNTS}, 400)
        if password:
            issued = await caller.log_in(token_request.credential.user, password)
            return _token(issued.token, issued.expires_ms * 1000)
        if caller.is_anonymous or (token_request.account and token_request.account != caller.principal.name):
            return _invalid_client()
        return _token(token_request.credential.token, caller.expires_us)
    except errors.Unauthenticated:
        return _invalid_client()
    except errors.IcestreamError as error:
        return error_response(error)
    finally:
        callers.release(caller)


def _token(token: str, expires_us: int | None) -> IcebergResponse:
    document: dict[str, Any] = {"access_token": token, "token_type": "bearer", "issued_token_type": _ACCESS_TOKEN}
    if expires_us is not None:
        document["expires_in"] = max(0, expires_us // 1_000_000 - int(time.time()))
    return token_response(document)


def parse_token_request(request: IcebergRequest) -> TokenRequest:
    """Raises InvalidInput with an error code of OAuth2 as its hint, Unauthenticated."""
    form = _parse_form(request.raw)
    match form.get("grant_type"):
        case None:
            raise errors.InvalidInput("grant_type is missing", hint="invalid_request")
        case grant if grant == _CLIENT_CREDENTIALS:
            return _client_credentials(request, form)
        case grant if grant == _TOKEN_EXCHANGE:
            if any(header.lower().startswith("basic ") for header in request.headers(b"authorization")):
                return _client_credentials(request, {})
            token = form.get("subject_token", "")
            bearer_token([f"Bearer {token}"])
            return TokenRequest(SessionCredential(token=token))
    supported = f"supported grant types: {_CLIENT_CREDENTIALS}, {_TOKEN_EXCHANGE}"
    raise errors.InvalidInput(supported, hint="unsupported_grant_type")


def _client_credentials(request: IcebergRequest, form: Mapping[str, str]) -> TokenRequest:
    account, secret = form.get("client_id", ""), form.get("client_secret", "")
    headers = request.headers(b"authorization")
    if headers and not secret:
        account, secret = _basic(headers)
    if not secret or len(secret) > limits.TOKEN_BYTES_MAX or len(account) > limits.NAME_BYTES_MAX:
        raise errors.Unauthenticated("the credential is not valid")
    if not account or secret.count(".") == 2:  # three parts: a token, which a password should not look like
        bearer_token([f"Bearer {secret}"])
        return TokenRequest(SessionCredential(token=secret), account)
    return TokenRequest(SessionCredential(user=account, password=secret), account)


def _basic(headers: list[str]) -> tuple[str, str]:
    """Name and secret of a Basic header, in which both are encoded as in a form (RFC 6749). Raises Unauthenticated."""
    scheme, _, encoded = headers[0].partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name, separator, secret = text.partition(":")
    if len(headers) > 1 or scheme.lower() != "basic" or not separator:
        raise errors.Unauthenticated("the credential is not valid")
    return unquote_plus(name), unquote_plus(secret)


def _parse_form(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), True, True, errors="strict", max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        raise errors.InvalidInput("the body is not a form", hint="invalid_request") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise errors.InvalidInput("a field occurs twice", hint="invalid_request")
    return form


def _invalid_client() -> IcebergResponse:
    return token_response({"error": "invalid_client", "error_description": "the credential is not valid"}, 401)
