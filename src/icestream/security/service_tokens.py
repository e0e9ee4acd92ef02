"""Tokens that this cluster signs: of service accounts, and of users after a password login.

    header   {"alg": "EdDSA", "kid": KEY, "typ": "JWT"}
    claims   iss    "icestream"
             aud    "icestream"
             sub    the principal, `service:local:ingest` or `user:local:alice`
             gen    the generation of the account: another one means that all its older tokens are revoked
             jti    128 random bits, by which one token is revoked
             iat, exp
             roles  that the token brings beside the grants of its account; absent if there are none

A token has these claims and no others. It is valid while its key is in the ring, its account exists with the same
generation, and its `jti` is not in the list of revoked tokens; the last two are the authenticator's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.security.key_ring import ALGORITHM, KeyRing
from icestream.security.principal import CallerIdentity, Principal, PrincipalKind
from icestream.security.signed_token import (
    InvalidToken,
    UnverifiedToken,
    VerificationKey,
    expiry_us,
    text_claim,
    verify_token,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ISSUER: Final = "icestream"
_CLAIMS: Final = frozenset({"iss", "aud", "sub", "gen", "jti", "iat", "exp", "roles"})
_KINDS: Final = (PrincipalKind.SERVICE, PrincipalKind.USER)


class MintedToken(NamedTuple):
    """A new token. It is shown once and stored nowhere; `token_id` is what revokes it."""

    token: str
    token_id: str
    expires_us: int

    def __repr__(self) -> str:
        return f"MintedToken({self.token_id})"


class ServiceTokens:
    """Mints and verifies the tokens of this cluster."""

    def __init__(self, ring: Callable[[], KeyRing], clock: Clock, randomness: Randomness) -> None:
        """`ring`: the present keys, which change with a rotation."""
        self._ring = ring
        self._clock = clock
        self._randomness = randomness
        self._verifying: tuple[KeyRing | None, Mapping[str, VerificationKey]] = (None, {})

    def mint(self, account: Principal, generation: int, roles: Sequence[str], ttl_seconds: int) -> MintedToken:
        """A token of a user or service account. Raises InvalidInput, ConfigurationError without a signing key."""
        import jwt

        if account.kind not in _KINDS:
            raise errors.InvalidInput(f"{account} has no tokens of this cluster", hint="name a user or service account")
        if not 1 <= ttl_seconds <= limits.SECURITY_TOKEN_SECONDS_MAX:
            raise errors.InvalidInput(
                f"a token cannot be valid for {ttl_seconds} s",
                hint=f"from 1 s to {limits.SECURITY_TOKEN_SECONDS_MAX} s",
            )
        key, now = self._ring().newest, self._clock.wall_us() // 1_000_000
        token_id = self._randomness.token(16).hex()
        claims: dict[str, object] = {
            "iss": ISSUER,
            "aud": ISSUER,
            "sub": str(account),
            "gen": generation,
            "jti": token_id,
            "iat": now,
            "exp": now + ttl_seconds,
        }
        if roles:
            claims["roles"] = list(roles)
        token = jwt.encode(claims, _private_key(key.seed), ALGORITHM, {"kid": key.key_id})
        if len(token) > limits.TOKEN_BYTES_MAX:
            raise errors.InvalidInput("the roles do not fit a token", hint="grant them to the account instead")
        return MintedToken(token, token_id, (now + ttl_seconds) * 1_000_000)

    def verify(self, token: UnverifiedToken) -> CallerIdentity:
        """The identity of a token that a key of the ring signed. Raises InvalidToken.

        Whether its account still has that generation, and whether it was revoked, is not checked here.
        """
        key = self._verification_keys().get(token.key_id)
        if key is None:
            raise InvalidToken("unknown key")
        return _identity(verify_token(token, key, self._clock.wall_us()), key.key_id)

    def _verification_keys(self) -> Mapping[str, VerificationKey]:
        """The public keys of the present ring, derived once for each ring."""
        ring = self._ring()
        if ring is not self._verifying[0]:
            keys = (
                VerificationKey(key.key_id, ALGORITHM, _private_key(key.seed).public_key(), ISSUER, ISSUER)
                for key in ring.keys
            )
            self._verifying = (ring, {key.key_id: key for key in keys})
        return self._verifying[1]

    def has_key(self, key_id: str) -> bool:
        """Whether tokens that this key signed are still valid."""
        return self._ring().find(key_id) is not None


def _identity(claims: Mapping[str, object], key_id: str) -> CallerIdentity:
    if not claims.keys() <= _CLAIMS:
        raise InvalidToken("unknown claims")
    try:
        principal = Principal.parse(text_claim(claims, "sub"))
    except errors.InvalidInput:
        raise InvalidToken("malformed subject") from None
    generation, roles = claims.get("gen"), claims.get("roles", [])
    if principal.kind not in _KINDS or isinstance(generation, bool) or not isinstance(generation, int):
        raise InvalidToken("malformed subject")
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise InvalidToken("malformed roles")
    return CallerIdentity(
        principal,
        roles=tuple(roles),
        expires_us=expiry_us(claims),
        credential_id=text_claim(claims, "jti"),
        generation=generation,
        key_id=key_id,
    )


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)
