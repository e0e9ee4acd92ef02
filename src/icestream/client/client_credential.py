"""The credential that a client sends when it connects: a token, or a user with a password.

    token         a text, or a function that returns one, now or awaited; it is called for each connection, so that a
                  token that expires is renewed at the next reconnect
    token_file    read for each connection, so that it may be replaced while the client runs; a file that other accounts
                  may read is refused
    ICESTREAM_TOKEN_FILE    such a file, if the program names no credential
    user, password

No `repr`, log or error shows a secret.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.rpc.handshake import HelloCredential

TOKEN_FILE_VARIABLE: Final = "ICESTREAM_TOKEN_FILE"
TokenSupplier = Callable[[], str | Awaitable[str]]


class ClientCredential:
    """Yields the credential for the next connection."""

    __slots__ = ("_supply",)

    def __init__(self, supply: Callable[[], HelloCredential | Awaitable[HelloCredential]]) -> None:
        self._supply = supply

    async def current(self) -> HelloCredential:
        """Raises ConfigurationError for a file without a token, InvalidInput for one that is too long."""
        credential = self._supply()
        return await credential if inspect.isawaitable(credential) else credential


def client_credential(
    token: str | TokenSupplier | None = None,
    token_file: str | Path | None = None,
    user: str | None = None,
    password: str | None = None,
) -> ClientCredential | None:
    """The credential that the arguments name, else the file of ICESTREAM_TOKEN_FILE; None without any.

    Raises InvalidInput for two of them, and for a user without a password.
    """
    if (user is None) != (password is None):
        raise errors.InvalidInput("a user needs a password, and a password a user", hint="pass both")
    credentials = [value for value in (token, token_file, user) if value is not None]
    if len(credentials) > 1:
        raise errors.InvalidInput("two credentials", hint="pass one of token, token_file, and user with password")
    if user is not None and password is not None:
        credential = HelloCredential(user=user, password=password)
        return ClientCredential(lambda: credential)
    if token is not None:
        return ClientCredential(lambda: _supplied(token))
    path = token_file if token_file is not None else os.environ.get(TOKEN_FILE_VARIABLE)
    return ClientCredential(lambda: HelloCredential(token=read_token(Path(path)))) if path else None


async def _supplied(token: str | TokenSupplier) -> HelloCredential:
    value = token if isinstance(token, str) else token()
    if inspect.isawaitable(value):
        value = await value
    return HelloCredential(token=_checked(value))


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read. Raises ConfigurationError, InvalidInput."""
    from icestream.runtime.secret_file import check_secret_file  # loads the settings, which few clients need

    check_secret_file("token_file", path)
    try:
        with path.open("rb") as file:
            raw = file.read(limits.TOKEN_BYTES_MAX + 3)  # a line end may follow
        return _checked(raw.decode("ascii").strip())
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not text"
    raise errors.ConfigurationError(
        f"cannot read the token in {path}: {reason}", hint="name a file that has the token and nothing else"
    )


def _checked(token: object) -> str:
    """Raises InvalidInput, without the value."""
    if not isinstance(token, str) or not token or len(token.encode(errors="replace")) > limits.TOKEN_BYTES_MAX:
        raise errors.InvalidInput(
            "the token is not a text, is empty, or is too long", hint=f"at most {limits.TOKEN_BYTES_MAX} bytes"
        )
    return token
