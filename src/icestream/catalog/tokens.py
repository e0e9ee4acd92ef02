"""Bearer tokens of the lake process. A request needs one of them; without any token every request is allowed.

They are in a file, one per line, so that no setting, command line or log contains them. Digests are compared, always
all of them, so that the response time reveals nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.runtime.secret_file import secret_file_fault

TOKEN_FILE_HINT: Final = (
    "write one token in each line, such as `openssl rand -hex 32` makes; only the owner may read the file (chmod 600)"
)


class Tokens:
    """The tokens that are accepted."""

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._digests = [_digest(token.encode()) for token in tokens]

    def __bool__(self) -> bool:
        """True if a request needs one of them."""
        return bool(self._digests)

    def allows(self, authorization: str | None) -> bool:
        """Returns whether a request is allowed. `authorization`: its header of that name."""
        if not self._digests:
            return True
        scheme, _, credentials = (authorization or "").partition(" ")
        digest = _digest(credentials.strip().encode("latin-1"))
        matches = [hmac.compare_digest(digest, token_digest) for token_digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def read_tokens(path: Path | None) -> Tokens:
    """Reads the token file; without a path no token is needed. Raises ConfigurationError. A broker reads it at its
    start, although only the lake process, its child, uses it: the error must end the start."""
    if path is None:
        return Tokens()
    tokens, fault = _read(path)
    if fault:
        raise errors.ConfigurationError(f"lake.token_file {path} {fault}", hint=TOKEN_FILE_HINT)
    return Tokens(tokens)


def first_token(path: Path | None) -> str | None:
    """Returns the token for requests to the node's own catalog. Raises ConfigurationError for a file that cannot be
    used."""
    if path is None:
        return None
    read_tokens(path)
    return _read(path)[0][0]


def token_fault(path: Path | None) -> str:
    """Returns why the file cannot be used, as the end of a sentence that begins with its name; empty if it can."""
    return _read(path)[1] if path is not None else ""


def _read(path: Path) -> tuple[Sequence[str], str]:
    """Returns the tokens of a file, and why it cannot be used. Empty lines and comments are skipped."""
    if fault := secret_file_fault(path):
        return (), fault
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return (), f"cannot be read: {getattr(error, 'strerror', None) or 'it is not ASCII'}"
    tokens = [token for line in lines if (token := line.strip()) and not token.startswith("#")]
    if not 0 < len(tokens) <= limits.CATALOG_TOKENS_MAX:
        return (), f"has {len(tokens)} tokens, not 1 to {limits.CATALOG_TOKENS_MAX}"
    if any(len(token) < limits.CATALOG_TOKEN_CHARACTERS_MIN or " " in token for token in tokens):
        return (), f"has a token shorter than {limits.CATALOG_TOKEN_CHARACTERS_MIN} characters, or two on one line"
    return tokens, ""
