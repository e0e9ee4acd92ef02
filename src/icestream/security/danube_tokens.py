"""Tokens that Danube's tools mint: HS256 with a key that every broker and every minting tool shares.

    claims   sub, iss             not compared: Danube does not either
             exp                  required
             principal_type       `user` or `service_account`; `broker_internal` is refused
             principal_name

Every tool with the shared key can mint any of them, so the key is worth little: its tokens are accepted on Danube's
listeners only, are principals of a kind of their own (`danube:user:NAME`), and never administer the broker (hazard
116).
"""

from __future__ import annotations

from typing import Final

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.security.principal import CallerIdentity, Principal, PrincipalKind, check_principal_name
from icestream.security.signed_token import (
    InvalidToken,
    UnverifiedToken,
    VerificationKey,
    expiry_us,
    text_claim,
    verify_token,
)

LISTENERS: Final = frozenset({"danube", "danube_admin"})
PRINCIPAL_TYPES: Final = frozenset({"user", "service_account"})


class DanubeTokens:
    """Verifies tokens by Danube's shared key."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        """Raises ConfigurationError for a key that is too short: it could be guessed from any token."""
        if len(key) < limits.SHARED_KEY_BYTES_MIN:
            raise errors.ConfigurationError(
                f"Danube's signing key has {len(key)} bytes: it could be guessed from any of its tokens",
                hint=f"use a random key of at least {limits.SHARED_KEY_BYTES_MIN} bytes, as RFC 7518 demands of HS256",
            )
        self._key = VerificationKey("", "HS256", key)
        self._clock = clock

    def verify(self, token: UnverifiedToken) -> CallerIdentity:
        """The identity of a token. Raises InvalidToken."""
        claims = verify_token(token, self._key, self._clock.wall_us())
        kind = text_claim(claims, "principal_type")
        if kind not in PRINCIPAL_TYPES:
            raise InvalidToken("principal type")
        try:
            name = check_principal_name(text_claim(claims, "principal_name"))
        except errors.InvalidInput:
            raise InvalidToken("malformed principal") from None
        return CallerIdentity(Principal(PrincipalKind.DANUBE, kind, name), expires_us=expiry_us(claims))
