"""Accounts and keys for tests of credentials."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt

from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.security.account_directory import StoredUser
from icestream.security.authenticator import Authenticator, FailedLogin
from icestream.security.danube_tokens import DanubeTokens
from icestream.security.external_tokens import ExternalTokens, IssuerOptions
from icestream.security.jwks import KeySet
from icestream.security.key_ring import KeyRing
from icestream.security.password_hashing import PasswordHashing
from icestream.security.service_tokens import ServiceTokens

ISSUER = "https://idp.example.com"
DANUBE_KEY = b"a shared key of thirty-two bytes!"


class Accounts:
    """An AccountDirectory in memory. `ring`: what `key_ring` stands for, unwrapped."""

    def __init__(self, ring: KeyRing) -> None:
        self.users: dict[str, StoredUser] = {}
        self.services: dict[str, int] = {}  # generations
        self.revoked: set[str] = set()
        self.ring = ring

    def find_user(self, name: str) -> StoredUser | None:
        return self.users.get(name)

    def find_service(self, name: str) -> int | None:
        return self.services.get(name)

    def is_revoked(self, token_id: str) -> bool:
        return token_id in self.revoked

    def key_ring(self) -> bytes:
        raise NotImplementedError


class LoginWorld:
    """An Authenticator with every kind of credential, and what it reported."""

    def __init__(self, key_set: bytes = b'{"keys": []}', options: IssuerOptions | None = None) -> None:
        self.clock = SimulatedClock()
        self.randomness = SeededRandomness(1)
        self.accounts = Accounts(KeyRing.new(self.randomness, self.clock.wall_us()))
        self.passwords = PasswordHashing(InlineOffload(), memory_kib=8)
        self.service_tokens = ServiceTokens(lambda: self.accounts.ring, self.clock, self.randomness)
        self.key_set = key_set
        self.key_set_loads = 0
        self.failures: list[FailedLogin] = []
        options = options or IssuerOptions("corp", ISSUER, "icestream")
        keys = KeySet(self.load_key_set, options.issuer, options.audience, self.clock, InlineOffload())
        self.authenticator = Authenticator(
            self.accounts,
            self.passwords,
            self.service_tokens,
            self.clock,
            external_tokens=[ExternalTokens(options, keys, self.clock)],
            danube_tokens=DanubeTokens(DANUBE_KEY, self.clock),
            on_failed=self.failures.append,
        )

    def load_key_set(self) -> bytes:
        self.key_set_loads += 1
        if not self.key_set:
            raise OSError("the issuer is down")
        return self.key_set

    @property
    def now(self) -> int:
        return self.clock.wall_us() // 1_000_000


def forge(header: dict[str, Any] | str, claims: dict[str, Any] | str, signature: bytes = b"\x00" * 64) -> str:
    """A token with any header, claims and signature; texts are used as they are."""
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims)]
    return ".".join(encode_part(part) for part in [*(part.encode() for part in parts), signature])


def encode_part(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign(claims: dict[str, Any] | bytes, key: Any, algorithm: str, headers: dict[str, Any] | None = None) -> str:
    """A token that is signed by the library; bytes are a payload as it is."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jwt.PyJWS().encode(payload, key, algorithm, headers)
