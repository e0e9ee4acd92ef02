"""TLS of dialled connections: what a client trusts, and the certificate that it shows."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from icestream import errors
from icestream.runtime.secret_file import check_secret_file

# The name by which a transport of the native wire has the certificate of its peer.
PEER_CERTIFICATE: Final = "peer_certificate"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client connects by TLS. The files are PEM.

    `ca`: the authorities that may sign a broker's certificate; None: those of this machine. `certificate`, `key`: what
    the client shows, if brokers ask for it. `server_name`: the name that the broker's certificate must have, if it is
    not the host of the address.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if (self.certificate is None) != (self.key is None):
            raise errors.InvalidInput(
                "a client certificate needs its key", hint="pass `certificate` and `key`, or neither"
            )

    def context(self) -> ssl.SSLContext:
        """Raises ConfigurationError for files that cannot be used."""
        if self.key is not None:
            check_secret_file("key", Path(self.key))
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(str(file) for file in (self.ca, self.certificate, self.key) if file is not None)
            raise errors.ConfigurationError(
                f"the TLS files {names} cannot be used: {error}", hint="they are PEM files; the key has no passphrase"
            ) from None
        return context


def peer_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified certificate of the other side, in DER; None without one."""
    given: bytes | None = transport.get_extra_info(PEER_CERTIFICATE)
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return given if tls is None else tls.getpeercert(binary_form=True)
