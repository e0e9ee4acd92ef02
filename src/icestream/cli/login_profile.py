"""The token of a login: where `icestream security login` keeps it, and which token a command sends.

    ICESTREAM_TOKEN_FILE    names a file with a token; it is used if it is set
    logins/ID               below XDG_CONFIG_HOME/icestream or ~/.config/icestream; ID is made of the broker's location.
                            Written by `security login` with mode 0600, replaced as a whole

A token is never a flag or an argument: `ps` shows those.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icestream import errors
from icestream.cli.contexts import contexts_file

if TYPE_CHECKING:
    from icestream.cli.broker_location import BrokerLocation

TOKEN_FILE_VARIABLE: Final = "ICESTREAM_TOKEN_FILE"
_MODE: Final = 0o600
_TOKEN_BYTES_MAX: Final = 64 * 1024


def login_file(location: BrokerLocation) -> Path:
    """Where the login at a broker is kept."""
    place = str(location.socket.absolute()) if location.socket is not None else location.address or ""
    return contexts_file().parent / "logins" / hashlib.sha256(place.encode()).hexdigest()[:32]


def write_login(location: BrokerLocation, token: str) -> Path:
    """Keeps the token of a login; returns its file. Raises ConfigurationError."""
    path = login_file(location)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="ascii") as file:
            file.write(token + "\n")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise errors.ConfigurationError(
            f"cannot write the login to {path}: {error.strerror or error}",
            hint="check the permissions of the directory, or set XDG_CONFIG_HOME to another one",
        ) from None
    return path


def find_token(location: BrokerLocation) -> str | None:
    """The token that a command sends to this broker; None without a login. Raises ConfigurationError."""
    path = find_token_file(location)
    return _read(path) if path is not None else None


def find_token_file(location: BrokerLocation) -> Path | None:
    """The file with the token that a command sends to this broker; None without a login."""
    if token_file := os.environ.get(TOKEN_FILE_VARIABLE):
        return Path(token_file).absolute()
    path = login_file(location)
    return path if path.exists() else None


def _read(path: Path) -> str:
    from icestream.runtime.secret_file import check_secret_file

    check_secret_file("token", path)
    try:
        with path.open("rb") as file:
            token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise errors.ConfigurationError(
            f"cannot read the token in {path}: {error.strerror or error}", hint="log in: icestream security login NAME"
        ) from None
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise errors.ConfigurationError(f"{path} has no token", hint="log in again: icestream security login NAME")
    return token
