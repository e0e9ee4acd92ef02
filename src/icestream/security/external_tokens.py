"""Tokens of external issuers (OpenID Connect): verified by the issuer's published keys, mapped to principal and roles.

    principal   oidc:NAME:VALUE      NAME of the issuer in the settings, VALUE of its `name_claim`, `sub` by default
    claims      the texts among the claims that the settings list; a rule may use them as a segment of a pattern
    roles       the texts of `roles_claim` that the settings map to roles; others bring nothing

Settings decide what a token can bring: a claim or a role that they do not name is ignored, so that an issuer which is
shared with other applications gives no rights here by a name that happens to be equal. `roles_claim` may be a path
such as `realm_access.roles`; every other claim is at the top level, and values that are no texts are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.security.jwks import KeySet
from icestream.security.principal import CallerIdentity, Principal, PrincipalKind, check_principal_name
from icestream.security.signed_token import InvalidToken, UnverifiedToken, expiry_us, text_claim, verify_token


@dataclass(frozen=True, slots=True)
class IssuerOptions:
    """An issuer whose tokens are accepted.

    name         by which principals name it
    issuer       that `iss` must be
    audience     that `aud` must contain: without it, a token for any other application would do
    roles        values of `roles_claim`, and the role that each brings
    claims       that patterns may use
    """

    name: str
    issuer: str
    audience: str
    name_claim: str = "sub"
    roles_claim: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    claims: Sequence[str] = ()


class ExternalTokens:
    """Verifies the tokens of one issuer."""

    def __init__(self, options: IssuerOptions, keys: KeySet, clock: Clock) -> None:
        self.options = options
        self._keys = keys
        self._clock = clock

    async def verify(self, token: UnverifiedToken) -> CallerIdentity:
        """The identity of a token. Raises InvalidToken. Waits for the issuer's keys if the token names a new one."""
        key = await self._keys.find(token.key_id)
        if key is None:
            raise InvalidToken("unknown key")
        return external_identity(verify_token(token, key, self._clock.wall_us()), self.options)

    async def close(self) -> None:
        await self._keys.close()


def external_identity(claims: Mapping[str, object], options: IssuerOptions) -> CallerIdentity:
    """The identity that verified claims stand for. Raises InvalidToken. Pure."""
    try:
        name = check_principal_name(text_claim(claims, options.name_claim))
    except errors.InvalidInput:
        raise InvalidToken("malformed subject") from None
    texts = {key: claims[key] for key in options.claims if isinstance(claims.get(key), str)}
    values = _texts_at(claims, options.roles_claim)
    roles = dict.fromkeys(options.roles[value] for value in values if value in options.roles)
    token_id = claims.get("jti", "")
    return CallerIdentity(
        Principal(PrincipalKind.OIDC, options.name, name),
        claims=MappingProxyType({key: str(value) for key, value in texts.items()}),
        roles=tuple(roles)[: limits.TOKEN_ROLES_MAX],
        expires_us=expiry_us(claims),
        # The name of the issuer before it: two issuers may use the same id.
        credential_id=f"{options.name}:{token_id}" if isinstance(token_id, str) and token_id else "",
    )


def _texts_at(claims: Mapping[str, object], path: str) -> list[str]:
    """The texts of a claim: of a list, or the words of one text."""
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return value.split()
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
