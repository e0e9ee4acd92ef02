"""The TLS certificates of Danube's listeners."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icestream import errors

Pem = tuple[bytes, bytes, bytes | None, bool]  # chain, key, authorities of clients, whether clients must show one


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, clients must present a certificate that this authority signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def read(self) -> Pem:
        """The contents of the files. Raises ConfigurationError."""
        authorities = None if self.client_ca is None else _read(self.client_ca)
        return _read(self.certificate), _read(self.key), authorities, authorities is not None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.ConfigurationError(
            f"{path} cannot be read: {error.strerror}", hint="the settings danube.tls_… name PEM files"
        ) from None
