"""TLS of dialled connections: what a client trusts, and the certificate that it shows."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from icestream import errors

# The name by which a transport of the native wire has the certificate of its peer.
PEER_CERTIFICATE: Final = "peer_certificate"


class ClientTls(NamedTuple):
    """How a client connects by TLS. The files are PEM."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """The context of connections. Raises ConfigurationError for files that cannot be used, InvalidInput for a
        certificate without its key."""
        if (self.certificate is None) != (self.key is None):
            raise errors.InvalidInput(
                "a client certificate needs its key", hint="pass `certificate` and `key`, or neither"
            )
        if self.key is not None:
            from icestream.runtime.secret_file import check_secret_file  # loads the settings, which few clients need

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


ClientTls.ca.__doc__ = "The authorities that may sign a broker's certificate; None: those of this machine."
ClientTls.certificate.__doc__ = "What the client shows to brokers that ask for it."
ClientTls.key.__doc__ = "The private key of the certificate; only its owner may read the file."
ClientTls.server_name.__doc__ = (
    "The name that the broker's certificate must have; empty: the host of the address. Of a cluster every node's "
    "certificate must have it."
)


def peer_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified certificate of the other side, in DER; None without one."""
    given: bytes | None = transport.get_extra_info(PEER_CERTIFICATE)
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return given if tls is None else tls.getpeercert(binary_form=True)
