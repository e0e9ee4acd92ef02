"""`danube`: how clients of Danube are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import Broken, Section


class DanubeSection(Section):
    """Clients of Danube (gRPC), at `ports.danube` and `ports.danube_admin`."""

    enable: StrictBool = Field(
        default=True,
        description="Serve clients of Danube. Off, a start loads no gRPC, which saves it a fraction of a second.",
    )
    advertised_host: Annotated[str, text.HOST] | None = Field(
        default=None,
        description="Host that clients of Danube are told to connect to. Unset: `node.advertised_host`.",
    )
    max_message_bytes: Annotated[int, units.size(1, limits.MESSAGE_BYTES_MAX)] = Field(
        default=limits.DANUBE_MESSAGE_BYTES_MAX_DEFAULT,
        description="Largest message from and to a client of Danube, as it is on the wire. Its Python client takes "
        "4 MiB at most: a larger one would end its stream again and again.",
    )
    tls_certificate: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the certificate of this broker, and its chain. Set: clients need TLS."
    )
    tls_key: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the private key of the certificate."
    )
    tls_client_ca: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="PEM file with the authorities of clients. Set: only clients with a certificate of theirs get in.",
    )

    def broken_rules(self) -> Iterator[Broken]:
        if (self.tls_certificate is None) != (self.tls_key is None):
            yield Broken(
                ("tls_certificate", "tls_key"), "one of `tls_certificate` and `tls_key` is set without the other",
                "set both, or none",
            )  # fmt: skip
        if self.tls_client_ca is not None and self.tls_certificate is None:
            yield Broken(
                ("tls_client_ca",), "`tls_client_ca` is set without TLS", "set `tls_certificate` and `tls_key` too"
            )
