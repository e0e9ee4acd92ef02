"""Bearer tokens: whoever has one of them may ask. Without any, everybody may who reaches the port.

They stand in a file, one in a line, so that they are in no setting, no command line and no log. Digests are compared,
all of them, so that the time of an answer tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icestream import errors, limits

TOKEN_FILE_HINT: Final = "write one token in each line, such as `openssl rand -hex 32` makes"


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
    """Raises ConfigurationError. A broker asks before its start: the process that needs them is only its child."""
    if path is None:
        return Tokens()
    found, fault = _read(path)
    if fault:
        raise errors.ConfigurationError(f"lake.token_file {path} {fault}", hint=TOKEN_FILE_HINT)
    return Tokens(found)


def first_token(path: Path | None) -> str | None:
    """For who asks the node's own catalog. Raises ConfigurationError for a file that cannot be used."""
    if path is None:
        return None
    read_tokens(path)
    return _read(path)[0][0]


def token_fault(path: Path | None) -> str:
    """Why the file cannot be used, to be said behind its name; empty when it can."""
    return _read(path)[1] if path is not None else ""


def _read(path: Path) -> tuple[Sequence[str], str]:
    """Lines that are empty or begin with # are left out."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return (), f"cannot be read: {getattr(error, 'strerror', None) or 'it is not ASCII'}"
    found = [token for line in lines if (token := line.strip()) and not token.startswith("#")]
    if not 0 < len(found) <= limits.CATALOG_TOKENS_MAX:
        return (), f"has {len(found)} tokens, not 1 to {limits.CATALOG_TOKENS_MAX}"
    if any(len(token) < limits.CATALOG_TOKEN_CHARACTERS_MIN or " " in token for token in found):
        return (), f"has a token of less than {limits.CATALOG_TOKEN_CHARACTERS_MIN} characters, or of two"
    return found, ""
