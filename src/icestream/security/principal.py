"""Principals and identities of callers. Pure.

    text form                    meaning
    user:local:alice             a password user of this cluster
    service:local:ingest         a service account, which has tokens
    oidc:ISSUER:alice            a subject of an external issuer; ISSUER is the name of the issuer in the settings
    certificate:LISTENER:NAME    the subject alternative name of a client certificate
    danube:user:NAME             the principal of a token that was signed with Danube's shared key: its type and name
    process:local:lake           a process of this node: lake, pipeline; no client can be it, no grant can name it
    anonymous                    a connection without a credential

Kind and issuer are part of the principal, so that `alice` of two issuers, of a certificate and of a password are four
principals (hazard 116). Names are NFKC and have no control characters, so that two texts that look alike are one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from icestream import errors, limits

LOCAL: Final = "local"
_NO_CLAIMS: Final[Mapping[str, str]] = MappingProxyType({})


class PrincipalKind(Enum):
    USER = "user"
    SERVICE = "service"
    OIDC = "oidc"
    CERTIFICATE = "certificate"
    DANUBE = "danube"
    PROCESS = "process"
    ANONYMOUS = "anonymous"


class Principal(NamedTuple):
    """An account, service, certificate or the like that acts. Compared by all three fields."""

    kind: PrincipalKind
    issuer: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parses the text form; `alice` alone is `user:local:alice`. Raises InvalidInput."""
        if text == PrincipalKind.ANONYMOUS.value:
            return ANONYMOUS
        parts = text.split(":", 2)
        if len(parts) == 1:
            return local_user(text)
        kind = next((kind for kind in PrincipalKind if kind.value == parts[0]), None)
        if len(parts) != 3 or kind is None or kind is PrincipalKind.ANONYMOUS:
            raise errors.InvalidInput(
                f"{text[:100]!r} is not a principal",
                hint="for example user:local:alice, service:local:ingest, anonymous",
            )
        return cls(kind, check_principal_name(parts[1]), check_principal_name(parts[2]))

    def __str__(self) -> str:
        return (
            self.kind.value if self.kind is PrincipalKind.ANONYMOUS else f"{self.kind.value}:{self.issuer}:{self.name}"
        )

    @property
    def is_internal(self) -> bool:
        """True for a process of the node."""
        return self.kind is PrincipalKind.PROCESS


ANONYMOUS: Final = Principal(PrincipalKind.ANONYMOUS)


def local_user(name: str) -> Principal:
    """The password user of this name. Raises InvalidInput."""
    return Principal(PrincipalKind.USER, LOCAL, check_principal_name(name))


def service_account(name: str) -> Principal:
    """The service account of this name. Raises InvalidInput."""
    return Principal(PrincipalKind.SERVICE, LOCAL, check_principal_name(name))


def check_principal_name(text: str) -> str:
    """Returns the name of a user, service account or issuer. Raises InvalidInput."""
    if (
        not text
        or not text.isprintable()
        or len(text.encode()) > limits.NAME_BYTES_MAX
        or text != unicodedata.normalize("NFKC", text)
    ):
        raise errors.InvalidInput(
            f"{text[:100]!r} is not a name",
            hint=f"printable characters in normal form, at most {limits.NAME_BYTES_MAX} bytes",
        )
    return text


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """An authenticated principal, with what its credential said.

    claims          of an external token, as text; a rule may use them as a segment of a pattern
    roles           that the credential itself brings: claims mapped by the settings of its issuer
    expires_us      when the credential ends, microseconds since 1970; None: it does not
    credential_id   of the token (`jti`), by which it is revoked; empty for a password or a certificate
    generation      of the account when the credential was issued: a token of an older generation is revoked
    key_id          of the key of this cluster that signed the token; it ends when the key leaves the ring
    """

    principal: Principal
    claims: Mapping[str, str] = field(default_factory=lambda: _NO_CLAIMS)
    roles: tuple[str, ...] = ()
    expires_us: int | None = None
    credential_id: str = ""
    generation: int = 0
    key_id: str = ""


ANONYMOUS_IDENTITY: Final = CallerIdentity(ANONYMOUS)
