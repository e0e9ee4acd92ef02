"""Certificates are reported before they expire. Real ones, created for the test."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from icestream import errors, limits
from icestream.processes.node.certificates import Certificate, NodeCertificates, certificates_check
from icestream.runtime.certificate import end_of, end_of_file
from tests.support.certificates import Certificates
from tests.support.node_settings import node_settings

END = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pem(tmp_path: Path, authority: trustme.CA) -> Path:
    path = tmp_path / "node.pem"
    path.write_bytes(authority.issue_cert("localhost", not_after=END).cert_chain_pems[0].bytes())
    return path


def test_the_end_of_a_certificate_is_read(pem: Path) -> None:
    assert end_of_file(pem) == END


@pytest.mark.parametrize("end", [END, datetime(2060, 1, 2, tzinfo=UTC)])  # UTCTime until 2049, GeneralizedTime after it
def test_of_a_chain_the_first_end_counts(tmp_path: Path, authority: trustme.CA, end: datetime) -> None:
    leaves = [authority.issue_cert("localhost", not_after=moment) for moment in (end + timedelta(days=9), end)]
    path = tmp_path / "chain.pem"
    path.write_bytes(b"a comment\n" + b"".join(leaf.cert_chain_pems[0].bytes() for leaf in leaves))
    assert end_of_file(path) == end


def test_truncated_and_changed_certificates_are_refused(tmp_path: Path, pem: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(pem.read_text())
    for size in range(200):  # the end stands in the first 200 bytes
        with pytest.raises(errors.DecodeError):
            end_of(whole[:size])
    for position in range(200):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            try:
                end_of(bytes(changed))
            except errors.DecodeError:
                continue
    (tmp_path / "empty.pem").touch()
    with pytest.raises(errors.DecodeError, match="no certificate"):
        end_of_file(tmp_path / "empty.pem")


@pytest.mark.parametrize(
    ("left", "ok", "words"),
    [
        (timedelta(days=limits.CERTIFICATE_DAYS_MIN + 2), True, "the first to end is"),
        (timedelta(days=limits.CERTIFICATE_DAYS_MIN), False, f"ends in {limits.CERTIFICATE_DAYS_MIN} days"),
        (timedelta(hours=2), False, "ends in less than a day"),
        (timedelta(0), False, "ended at 2031-05-06T07:08:09+00:00: new connections fail"),
    ],
)
def test_a_near_expiry_is_reported_and_leaves_the_node_ready(left: timedelta, ok: bool, words: str) -> None:
    later = Certificate("danube.tls_certificate", Path("other.pem"), END + timedelta(days=1))
    check = certificates_check([later, Certificate("meta_store.tls_certificate", Path("node.pem"), END)], END - left)
    assert check is not None
    assert (check.ok, check.is_needed) == (ok, False)
    assert words in check.reason
    assert "node.pem (meta_store.tls_certificate)" in check.reason


def test_a_node_without_certificates_has_no_such_check() -> None:
    assert certificates_check([], END) is None


def test_the_certificates_of_all_settings_are_read(tmp_path: Path) -> None:
    pem = Certificates(tmp_path / "pem")
    tls = {"tls_certificate": str(pem.server), "tls_key": str(pem.server.with_suffix(".key"))}
    settings = node_settings(
        tmp_path / "data",
        danube={"enable": True, **tls, "tls_client_ca": str(pem.client_ca)},
        meta_store={**tls, "tls_authority": str(pem.client_ca)},
        tls=pem.settings("optional", lake={"enable": False}),
    )
    certificates = NodeCertificates(settings)
    assert set(certificates.listeners) == {"native", "danube", "http", "raft"}
    names = {certificate.setting for certificate in certificates.certificates()}
    assert names == {
        "tls.certificate", "tls.client_ca", "danube.tls_certificate", "danube.tls_client_ca",
        "meta_store.tls_certificate", "meta_store.tls_authority",
    }  # fmt: skip
