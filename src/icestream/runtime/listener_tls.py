"""The certificate of a listener: which files the settings name, and their contents, read again when they change.

    in use          the last files that could be used: readable, whole, the key that of the certificate
    they change     usable: in use for new connections, and `on_change` is called
                    not usable, such as half of a file: those in use stay, `fault` says why, and it is logged once for
                    each state of the files (hazard 124)

A change is seen by size, time and inode. Certificates are replaced in two steps, file by file: between them they do not
fit each other, and the next look finds them whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.runtime.certificate import digest_of_text, end_of_text
from icestream.runtime.clock import Clock
from icestream.runtime.secret_file import check_secret_file
from icestream.settings import Settings
from icestream.settings.tls_section import ClientCertificates, ListenerTlsSection

# The name by which a transport of the native wire has the certificate of its peer.
PEER_CERTIFICATE: Final = "peer_certificate"
LISTENERS: Final = ("native", "danube", "mqtt", "http", "lake")


class Pem(NamedTuple):
    """The contents of a listener's files, and what they mean for its clients. The native part takes it as a tuple."""

    chain: bytes
    key: bytes
    client_authorities: bytes | None  # None: clients show no certificate
    is_client_required: bool  # clients without a certificate are refused
    is_latest_only: bool  # TLS 1.2 is refused


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of one listener."""

    setting: str  # that of the certificate
    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_certificates: ClientCertificates = "none"
    is_latest_only: bool = False
    client_ca_setting: str = ""  # default: `client_ca` beside the certificate

    @property
    def authority_setting(self) -> str:
        return self.client_ca_setting or self.setting.removesuffix("certificate") + "client_ca"

    def read(self) -> Pem:
        """The contents of the files. Raises ConfigurationError."""
        section = self.setting.removesuffix("certificate")
        check_secret_file(f"{section}key", self.key)
        authorities = None
        if self.client_ca is not None and self.client_certificates != "none":
            authorities = _read(self.authority_setting, self.client_ca)
        is_required = self.client_certificates == "required"
        chain, key = _read(self.setting, self.certificate), _read(f"{section}key", self.key)
        return Pem(chain, key, authorities, is_required, self.is_latest_only)

    def state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Differs when a file has changed."""
        return tuple(_file_state(path) for path in (self.certificate, self.key, self.client_ca) if path is not None)


def tls_files(settings: Settings, listener: str) -> TlsFiles | None:
    """The files of a listener (one of LISTENERS); None for plain text. `danube.tls_…` come first for Danube."""
    tls, danube = settings.tls, settings.danube
    own: ListenerTlsSection = getattr(tls, listener)
    is_latest_only = tls.min_version == "1.3"
    if listener == "danube" and danube.tls_certificate is not None and danube.tls_key is not None:
        client_certificates: ClientCertificates = "none" if danube.tls_client_ca is None else "required"
        return TlsFiles(
            "danube.tls_certificate",
            danube.tls_certificate,
            danube.tls_key,
            danube.tls_client_ca,
            client_certificates,
            is_latest_only,
        )
    setting = "tls.certificate" if own.certificate is None else f"tls.{listener}.certificate"
    certificate, key = (tls.certificate, tls.key) if own.certificate is None else (own.certificate, own.key)
    if certificate is None or key is None or not own.enable:
        return None
    client_certificates = own.client_certificates or tls.client_certificates
    return TlsFiles(setting, certificate, key, own.client_ca or tls.client_ca, client_certificates, is_latest_only)


class ListenerTls:
    """The certificate of one listener, as new connections get it."""

    def __init__(self, listener: str, files: TlsFiles) -> None:
        """Raises ConfigurationError for files that cannot be used."""
        self.listener = listener
        self.files = files
        self.fault = ""  # why files that have changed are not in use
        self.on_change: list[Callable[[Pem], None]] = []
        self._state = files.state()
        self.pem, self.context = self._load()

    def _load(self) -> tuple[Pem, ssl.SSLContext]:
        pem = self.files.read()
        try:
            return pem, server_context(pem)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise errors.ConfigurationError(
                f"the TLS files {self.files.certificate} and {self.files.key} ({self.files.setting}) cannot be used: "
                f"{error}",
                hint="a certificate with its chain and the private key that belongs to it, both as PEM",
            ) from None

    @property
    def end(self) -> datetime | None:
        """When the first certificate in use expires."""
        with contextlib.suppress(errors.DecodeError):
            return end_of_text(self.pem.chain.decode("latin-1"), str(self.files.certificate))
        return None

    @property
    def digest(self) -> str:
        """The SHA-256 of the certificate in use, in hexadecimal."""
        return digest_of_text(self.pem.chain.decode("latin-1"), str(self.files.certificate))

    def refresh(self) -> bool:
        """Reads the files again if they have changed; returns whether anything did. A pair that cannot be used is
        reported by `fault`."""
        state = self.files.state()
        if state == self._state:
            return False
        self._state = state
        try:
            self.pem, self.context = self._load()
        except errors.ConfigurationError as error:
            self.fault = str(error)
            return True
        self.fault = ""
        for on_change in self.on_change:
            on_change(self.pem)
        return True


def open_listener_tls(settings: Settings, listener: str) -> ListenerTls | None:
    """The certificate that the settings name for a listener; None for plain text. Raises ConfigurationError."""
    files = tls_files(settings, listener)
    return None if files is None else ListenerTls(listener, files)


async def follow_files(listeners: Sequence[ListenerTls], clock: Clock, report: Callable[[ListenerTls], None]) -> None:
    """Looks for changed files until the task is cancelled. `report` is called after each change."""
    while True:
        await clock.sleep(limits.TLS_FILES_SECONDS)
        for listener in listeners:
            if listener.refresh():
                report(listener)


def server_context(pem: Pem) -> ssl.SSLContext:
    """Raises ssl.SSLError for bytes that cannot be used."""
    chain, key, authorities, is_required, is_latest_only = pem
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if is_latest_only else ssl.TLSVersion.TLSv1_2
    _load_pair(context, chain, key)
    if authorities is not None:
        context.load_verify_locations(cadata=authorities.decode("latin-1"))
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


def peer_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The verified certificate of the other side of a connection, in DER; None without one."""
    certificate: bytes | None = transport.get_extra_info(PEER_CERTIFICATE)
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return certificate if tls is None else tls.getpeercert(binary_form=True)


def peer_client_context(pem: Pem) -> ssl.SSLContext:
    """For a node that dials another one: it presents the same certificate, and trusts the same authorities, as in the
    connections that it accepts. Raises ssl.SSLError for bytes that cannot be used."""
    chain, key, authorities, _, _ = pem
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_pair(context, chain, key)
    context.load_verify_locations(cadata=(authorities or b"").decode("latin-1"))
    return context


def trusting_context(files: TlsFiles) -> ssl.SSLContext:
    """For requests to the listener that has these files: its certificate is accepted. Raises ConfigurationError."""
    chain = _read(files.setting, files.certificate)
    try:
        return own_client_context(chain)
    except ssl.SSLError as error:
        raise errors.ConfigurationError(
            f"{files.setting}: {files.certificate} is not a certificate: {error}", hint="it is a PEM file"
        ) from None


def own_client_context(chain: bytes) -> ssl.SSLContext:
    """For a process of this node that asks another one: it accepts this certificate, whatever name it is for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=chain.decode("latin-1"))
    return context


def _load_pair(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    # From memory: by the time OpenSSL opens the files, they may be others than those that were read.
    with _memory_file(chain) as chain_path, _memory_file(key) as key_path:
        # A key with a passphrase would ask for it on the terminal.
        context.load_cert_chain(chain_path, key_path, password=lambda: b"")


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.CERTIFICATE_FILE_BYTES_MAX)
    except OSError as error:
        raise errors.ConfigurationError(
            f"{setting}: {path} cannot be read: {error.strerror}", hint=f"the setting {setting} names a PEM file"
        ) from None
