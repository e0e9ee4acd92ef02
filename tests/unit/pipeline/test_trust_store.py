"""The certificates of this machine in Java's form: read back by hand, and by Java's own tool where there is one."""

from __future__ import annotations

import hashlib
import shutil
import ssl
import struct
import subprocess
from pathlib import Path

import pytest

from icestream.pipeline.spark_setup.java_search import PASSWORD, trust_store


def test_the_bytes_match_the_format() -> None:
    store = trust_store([b"first", b"second one"])
    body, digest = store[:-20], store[-20:]
    assert body == (
        struct.pack(">III", 0xFEEDFEED, 2, 2)
        + b"\0\0\0\2\0\4ca-0" + bytes(8) + b"\0\5X.509\0\0\0\5first"
        + b"\0\0\0\2\0\4ca-1" + bytes(8) + b"\0\5X.509\0\0\0\nsecond one"
    )  # fmt: skip
    assert digest == hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def test_java_reads_the_certificates_of_this_machine(tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    if keytool is None or not trusted:
        pytest.skip("there is no keytool, or no trusted certificate")
    (tmp_path / "trust.jks").write_bytes(trust_store(trusted))
    command = [keytool, "-list", "-keystore", str(tmp_path / "trust.jks"), "-storepass", PASSWORD]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, f"contains {len(trusted)} entr" in done.stdout) == (0, True), done.stdout
