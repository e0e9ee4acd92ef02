"""`tls`: the certificates of all listeners, and what differs for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from icestream.settings import text
from icestream.settings.section import Broken, Section

ClientCertificates = Literal["none", "optional", "required"]


def _broken_pair(certificate: Path | None, key: Path | None) -> Iterator[Broken]:
    if (certificate is None) != (key is None):
        yield Broken(
            ("certificate", "key"), "one of `certificate` and `key` is set without the other", "set both, or none"
        )


class ListenerTlsSection(Section):
    """TLS of one listener, where it differs from the other ones."""

    enable: StrictBool = Field(
        default=True,
        description="Serve this listener by TLS, if there is a certificate for it. Off: plain text, for a listener "
        "behind a proxy.",
    )
    certificate: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="PEM file of this listener's own certificate, and its chain. Unset: `tls.certificate`.",
    )
    key: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the private key of the certificate, mode 0600."
    )
    client_ca: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the authorities of this listener's clients. Unset: `tls.client_ca`."
    )
    client_certificates: ClientCertificates | None = Field(
        default=None, description="Whether clients of this listener show one. Unset: `tls.client_certificates`."
    )

    def broken_rules(self) -> Iterator[Broken]:
        yield from _broken_pair(self.certificate, self.key)


class TlsSection(Section):
    """TLS of the listeners. With a certificate all of them use it; the local socket and the Raft port do not
    (`meta_store.tls_…`). The files are read again when they change, without a restart."""

    certificate: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the certificate of this node, and its chain. Set: clients need TLS."
    )
    key: Annotated[Path, text.FILE] | None = Field(
        default=None, description="PEM file with the private key of the certificate. Only its owner may read it (0600)."
    )
    client_ca: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="PEM file with the authorities that sign certificates of clients. Not the cluster's own authority "
        "(`meta_store.tls_authority`): every certificate of that one may be a node.",
    )
    client_certificates: ClientCertificates = Field(
        default="none",
        description="`none`: clients show none. `optional`: one that is shown must be valid. `required`: without one "
        "no connection is opened. The last two need `client_ca`.",
    )
    min_version: Literal["1.2", "1.3"] = Field(
        default="1.2", description="The oldest version of TLS that is accepted. 1.0 and 1.1 never are."
    )
    native: ListenerTlsSection = ListenerTlsSection()
    danube: ListenerTlsSection = ListenerTlsSection()
    mqtt: ListenerTlsSection = ListenerTlsSection()
    http: ListenerTlsSection = ListenerTlsSection()
    lake: ListenerTlsSection = ListenerTlsSection()

    def broken_rules(self) -> Iterator[Broken]:
        yield from _broken_pair(self.certificate, self.key)
        if self.client_certificates != "none" and self.client_ca is None:
            yield Broken(
                ("client_certificates", "client_ca"),
                f"`client_certificates` is {self.client_certificates}, and no authority could have signed one",
                "set `client_ca`",
            )
        for name in ("native", "danube", "mqtt", "http", "lake"):
            listener: ListenerTlsSection = getattr(self, name)
            if listener.client_certificates not in (None, "none") and (listener.client_ca or self.client_ca) is None:
                yield Broken(
                    (f"{name}.client_certificates", "client_ca"),
                    f"`{name}.client_certificates` is {listener.client_certificates}, and no authority could have "
                    "signed one",
                    f"set `client_ca` or `{name}.client_ca`",
                )
