"""Signed tokens (JWT, RFC 7519, in the compact form of RFC 7515): parsing and verification, the same for every issuer.

    token    HEADER.PAYLOAD.SIGNATURE, each base64url without padding; at most TOKEN_BYTES_MAX bytes
    HEADER   a JSON object: `alg`, `kid`, `typ`; no `crit`, `b64`, `enc`, `zip`, and no `cty` (a token in a token)
    PAYLOAD  a JSON object: `exp` is required, `nbf` and `iat` are checked where they are present

What is checked, and against what (hazard 116): the verification key fixes algorithm, issuer and audience. Nothing of
the token selects them: `kid` and the unverified `iss` only look up which key to verify with, and the key then decides.
A name that occurs twice in an object is refused, because two parsers might choose differently. The library (PyJWT)
verifies the signature; times are checked here, because its clock cannot be handed in.

Every refusal is an InvalidToken with a reason for the audit. Callers answer with one text for all of them.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from icestream import limits

if TYPE_CHECKING:
    from jwt import PyJWS

_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{2,}", re.ASCII)
# Extensions that change what is signed or how it is read. A library that ignores one would verify something else.
_REFUSED_HEADERS: Final = frozenset({"crit", "b64", "enc", "zip", "cty", "jwk", "jku", "x5u", "x5c"})
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_.:+/=@-]{1,200}", re.ASCII)
# Year 9999: a larger number is no time.
_TIME_MAX: Final = 253_402_300_799


class InvalidToken(ValueError):
    """A token that is not accepted, with the reason for the audit: no part of the token is in it.

    Not a part of the tree in errors.py: the authenticator turns it into Unauthenticated, whose text is always the same.
    """


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key, and all that a token which it verifies must say.

    algorithm   the only one that the key is used with
    key         what the library takes: a public key object, or the bytes of a shared secret
    issuer      that `iss` must be; None: not compared
    audience    that `aud` must be or contain; None: not compared
    """

    key_id: str
    algorithm: str
    key: Any = field(repr=False)
    issuer: str | None = None
    audience: str | None = None


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """What an unverified token says about the key that it wants. Only for looking up that key."""

    token: str = field(repr=False)
    key_id: str = ""
    issuer: str = ""


def parse_token(token: str) -> UnverifiedToken:
    """Checks the form of a token. Raises InvalidToken."""
    if len(token) > limits.TOKEN_BYTES_MAX:
        raise InvalidToken("too long")
    if _COMPACT.fullmatch(token) is None:
        raise InvalidToken("not a signed token")
    header_text, payload_text, _ = token.split(".")
    header, payload = _parse_object(header_text), _parse_object(payload_text)
    if not _REFUSED_HEADERS.isdisjoint(header):
        raise InvalidToken("header with an extension")
    key_id, issuer = header.get("kid", ""), payload.get("iss", "")
    if not isinstance(key_id, str) or (key_id and _KEY_ID.fullmatch(key_id) is None):
        raise InvalidToken("malformed key id")
    if not isinstance(issuer, str):
        raise InvalidToken("malformed issuer")
    return UnverifiedToken(token, key_id, issuer)


def verify_token(token: UnverifiedToken, key: VerificationKey, now_us: int) -> Mapping[str, object]:
    """Returns the claims of a token that the key verifies and that is valid now. Raises InvalidToken."""
    from jwt.exceptions import PyJWTError

    try:
        verified = _library().decode_complete(token.token, key.key, algorithms=[key.algorithm])
    except (PyJWTError, TypeError, ValueError) as error:
        raise InvalidToken("signature") from error
    claims = _parse_json(verified["payload"])
    if key.issuer is not None and claims.get("iss") != key.issuer:
        raise InvalidToken("issuer")
    if key.audience is not None and key.audience not in _texts(claims.get("aud")):
        raise InvalidToken("audience")
    now, skew = now_us / 1e6, limits.TOKEN_SKEW_SECONDS
    if "exp" not in claims:
        raise InvalidToken("no expiry")
    if _time(claims, "exp") + skew <= now:
        raise InvalidToken("expired")
    if any(name in claims and _time(claims, name) - skew > now for name in ("nbf", "iat")):
        raise InvalidToken("not valid yet")
    return claims


@cache
def _library() -> PyJWS:
    # Late: loading it takes longer than the start of a broker without accounts may notice.
    from jwt import PyJWS

    return PyJWS()


def expiry_us(claims: Mapping[str, object]) -> int:
    """When verified claims expire, microseconds since 1970: with the skew, as `verify_token` accepts them so long."""
    return int((_time(claims, "exp") + limits.TOKEN_SKEW_SECONDS) * 1e6)


def text_claim(claims: Mapping[str, object], name: str) -> str:
    """A claim that must be a text. Raises InvalidToken."""
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidToken(f"no claim {name}")
    return value


def _texts(value: object) -> Sequence[str]:
    """The texts of a claim that is one text or a list of them."""
    if isinstance(value, str):
        return (value,)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else ()


def _time(claims: Mapping[str, object], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _TIME_MAX:
        raise InvalidToken(f"malformed {name}")
    return float(value)


def _parse_object(text: str) -> dict[str, object]:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidToken("not base64url") from None
    return _parse_json(raw)


def _parse_json(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except InvalidToken:
        raise
    except (ValueError, RecursionError):
        raise InvalidToken("not JSON") from None
    if not isinstance(value, dict):
        raise InvalidToken("not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidToken("a name occurs twice")
    return values


def _refuse_constant(text: str) -> object:
    raise InvalidToken("a number that is not finite")
