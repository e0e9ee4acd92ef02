"""TLS of dialled connections: what a client trusts, and the certificate that it shows.

A program names a ClientTls. Commands, and programs that name none, take it from variables, if one of them is set:

    ICESTREAM_CA_FILE             the authorities; `system`: those of this machine, as without it
    ICESTREAM_CERTIFICATE_FILE    the certificate of the client, and ICESTREAM_KEY_FILE its key
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from icestream import errors

CA_VARIABLE: Final = "ICESTREAM_CA_FILE"
CERTIFICATE_VARIABLE: Final = "ICESTREAM_CERTIFICATE_FILE"
KEY_VARIABLE: Final = "ICESTREAM_KEY_FILE"
SYSTEM: Final = "system"


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


def tls_of_variables(environment: Mapping[str, str]) -> ClientTls | None:
    """What the variables name; None if none is set: plain text."""
    ca, certificate, key = (environment.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    if ca is None and certificate is None and key is None:
        return None
    return ClientTls(None if ca == SYSTEM else ca, certificate, key)


ClientTls.ca.__doc__ = "The authorities that may sign a broker's certificate; None: those of this machine."
ClientTls.certificate.__doc__ = "What the client shows to brokers that ask for it."
ClientTls.key.__doc__ = "The private key of the certificate; only its owner may read the file."
ClientTls.server_name.__doc__ = (
    "The name that the broker's certificate must have; empty: the host of the address. Of a cluster every node's "
    "certificate must have it."
)
