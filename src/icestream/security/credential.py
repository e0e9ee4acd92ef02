"""Credentials as front ends receive them, before anything is verified. Pure. No `repr` shows a secret."""

from __future__ import annotations

from dataclasses import dataclass, field


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


Credential = PasswordCredential | BearerCredential | CertificateCredential | ProcessCredential
