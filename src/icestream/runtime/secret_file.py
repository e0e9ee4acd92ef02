"""Files that hold secrets: only their owner may read them, so they are created with mode 0600 and refused otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from icestream import errors, limits
from icestream.settings.secret_source import mode_fault, secret_fault


def secret_hint(path: Path) -> str:
    return f"chmod 600 {path}"


def secret_file_fault(path: Path) -> str:
    """Why a file should not hold a secret, as the end of a sentence that begins with its name; empty if it may."""
    return secret_fault(path)


def check_secret_file(setting: str, path: Path) -> None:
    """Raises ConfigurationError for a file that other accounts may read."""
    if fault := secret_fault(path):
        raise errors.ConfigurationError(f"{setting}: {path} {fault}", hint=secret_hint(path))


def read_secret_file(path: Path) -> bytes:
    """The content without the newline at its end. Raises ConfigurationError; no text of it is in the message.

    A file that others may read is refused instead of used: its secret may be known already.
    """
    try:
        # Not blocking: a pipe of this name would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise errors.ConfigurationError(f"{path} is not a regular file", hint="name a file with the secret")
            if fault := mode_fault(state.st_mode):
                raise errors.ConfigurationError(f"{path} holds a secret and {fault}", hint=secret_hint(path))
            content = file.read(limits.SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read: {error.strerror}", hint="name a file that the broker's account can read"
        ) from None
    if not 0 < len(content) <= limits.SECRET_FILE_BYTES_MAX:
        raise errors.ConfigurationError(
            f"{path} is empty, or larger than {limits.SECRET_FILE_BYTES_MAX} bytes", hint="name a file with one secret"
        )
    return content.rstrip(b"\r\n")


def create_secret_file(path: Path, content: bytes) -> None:
    """Creates a file with mode 0600; it is durable when this returns. Raises FileExistsError, OSError."""
    # Whole or not at all: a crash in between must not leave half a key under the name.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)  # fails if the name is taken, which a rename would not
    finally:
        draft.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
