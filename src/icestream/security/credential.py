"""Credentials as front ends receive them, before anything is verified. Pure. No `repr` shows a secret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from icestream import errors, limits

BEARER_HINT: Final = "send `authorization: Bearer TOKEN` with a valid token"


@dataclass(frozen=True, slots=True)
class PasswordCredential:
    name: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BearerCredential:
    """A token: of a service account, of an external issuer, or, on Danube's listener, of Danube."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CertificateCredential:
    """The verified certificate of a TLS client, in DER form."""

    certificate: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProcessCredential:
    """The secret by which a process of this node proves its role on the local socket."""

    role: str
    secret: str = field(repr=False)


def bearer_token(authorization: Sequence[str]) -> str:
    """Returns the token of an HTTP request; empty if it has none. `authorization`: its headers of that name.

    Raises Unauthenticated for anything else but one bearer token: which of two headers counts must not depend on
    the program that reads them.
    """
    if not authorization:
        return ""
    scheme, _, token = authorization[0].partition(" ")
    token = token.strip()
    if len(authorization) > 1 or scheme.lower() != "bearer" or not _is_token(token):
        raise errors.Unauthenticated("the credential is not valid", hint=BEARER_HINT)
    return token


def _is_token(text: str) -> bool:
    return 0 < len(text) <= limits.TOKEN_BYTES_MAX and text.isascii() and text.isprintable() and " " not in text


Credential = PasswordCredential | BearerCredential | CertificateCredential | ProcessCredential
