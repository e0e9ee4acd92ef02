"""Secrets by which processes of a node prove their roles on the local socket (hazard 108).

    role        process                 secret of this run of the broker    secret of a file
    lake        the lake process        handed over by a pipe at each       DATA_DIR/security/lake.secret
    pipeline    the pipeline process    start (processes/child_settings.py) DATA_DIR/security/pipeline.secret

The broker's own children have the first kind, which is never stored and never in an environment. The second kind is for
a process that an operator runs (`icestream lake serve`, `icestream pipeline run`). `icestream security process-secret`
makes the file: 64 hexadecimal digits, mode 0600. The file is the only copy, and both sides read it at each connection,
so that a new secret needs no restart and a deleted file ends the role of that process. ICESTREAM_ROLE_SECRET_FILE names
another file for the process, such as a copy for its account.

Each node has its own secrets: they open the local socket of that node alone.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from icestream import errors
from icestream.observability.log import get_logger
from icestream.runtime.randomness import Randomness
from icestream.runtime.secret_file import create_secret_file, read_secret_file

_log = get_logger("security")
ROLES: Final = ("lake", "pipeline")
SECRET_BYTES: Final = 32
SECRET_FILE_VARIABLE: Final = "ICESTREAM_ROLE_SECRET_FILE"


def role_secret_file(data_dir: Path, role: str) -> Path:
    return data_dir / "security" / f"{role}.secret"


def read_role_secret(data_dir: Path, role: str, environment: Mapping[str, str]) -> str:
    """The secret of a process that an operator runs; empty without a file. Raises ConfigurationError for a file that
    cannot be used, or that the environment names and that is absent."""
    file_name = environment.get(SECRET_FILE_VARIABLE)
    path = Path(file_name) if file_name else role_secret_file(data_dir, role)
    return read_secret_file(path).decode("ascii", "replace") if file_name or path.exists() else ""


class RoleSecrets:
    """The secrets of one run of a broker, and those of the files in its data directory."""

    def __init__(self, randomness: Randomness, data_dir: Path) -> None:
        self._randomness = randomness
        self._data_dir = data_dir
        self._secrets = {role: randomness.token(SECRET_BYTES).hex() for role in ROLES}

    def role_secret(self, role: str) -> str:
        """The secret of this run for a role, for the child that has it."""
        return self._secrets[role]

    def is_valid(self, role: str, secret: str) -> bool:
        """Whether this is a secret of the role. Takes as long for a wrong one as for the right one."""
        expected = self._secrets.get(role, "")
        if not expected or not secret:
            return False
        is_of_run = _is_equal(expected, secret)
        return _is_equal(self._file_secret(role), secret) or is_of_run

    def _file_secret(self, role: str) -> str:
        """Empty without a file, or if the file cannot be used, which is logged."""
        try:
            return read_role_secret(self._data_dir, role, {})
        except errors.ConfigurationError as error:
            _log.error("the secret of a process is not used", role=role, reason=str(error))
            return ""

    def create_file(self, role: str) -> Path:
        """Makes a new secret for a process that an operator runs; an older one is invalid. Waits for the disk.

        Raises InvalidInput for an unknown role, ConfigurationError if the file cannot be written.
        """
        path = self._path(role)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)
            create_secret_file(path, self._randomness.token(SECRET_BYTES).hex().encode() + b"\n")
        except OSError as error:
            raise errors.ConfigurationError(
                f"cannot write {path}: {error.strerror or error}", hint="check the data directory and its owner"
            ) from None
        return path

    def delete_file(self, role: str) -> Path:
        """Ends the secret of the file. Raises InvalidInput without one. Waits for the disk."""
        path = self._path(role)
        try:
            path.unlink()
        except FileNotFoundError:
            raise errors.InvalidInput(f"{path} does not exist: the process {role} has no secret to delete") from None
        except OSError as error:
            raise errors.ConfigurationError(
                f"cannot delete {path}: {error.strerror or error}", hint="check the data directory and its owner"
            ) from None
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return path

    def _path(self, role: str) -> Path:
        if role not in ROLES:
            raise errors.InvalidInput(f"{role[:100]!r} is not a role of a process", hint=" or ".join(ROLES))
        return role_secret_file(self._data_dir, role)


def _is_equal(expected: str, secret: str) -> bool:
    return hmac.compare_digest(expected.encode(), secret.encode("utf-8", "replace")) and bool(expected)
