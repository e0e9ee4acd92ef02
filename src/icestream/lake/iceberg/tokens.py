"""Bearer tokens: whoever has one of them may ask. Without any, everybody may who reaches the port.

They stand in a file, one in a line, so that they are in no setting, no command line and no log. Digests are compared,
all of them, so that the time of an answer tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from icestream import errors, limits


class Tokens:
    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._digests = [_digest(token.encode()) for token in tokens]

    def allows(self, authorization: str | None) -> bool:
        """`authorization`: what the head of a request says."""
        if not self._digests:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        asked = _digest(given.strip().encode("latin-1"))
        fits = [hmac.compare_digest(asked, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(fits)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def read_tokens(path: Path | None) -> Tokens:
    """Lines that are empty or begin with # are left out."""
    if path is None:
        return Tokens()
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(path, f"cannot be read: {getattr(error, 'strerror', None) or 'it is not ASCII'}") from None
    found = [token for line in lines if (token := line.strip()) and not token.startswith("#")]
    if not 0 < len(found) <= limits.CATALOG_TOKENS_MAX:
        raise _unusable(path, f"has {len(found)} tokens, not 1 to {limits.CATALOG_TOKENS_MAX}")
    if any(len(token) < limits.CATALOG_TOKEN_CHARACTERS_MIN or " " in token for token in found):
        raise _unusable(path, f"has a token of less than {limits.CATALOG_TOKEN_CHARACTERS_MIN} characters, or of two")
    return Tokens(found)


def _unusable(path: Path, what: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        f"lake.token_file {path} {what}", hint="write one token in each line, such as `openssl rand -hex 32` makes"
    )
