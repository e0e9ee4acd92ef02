"""Azurite, Microsoft's own stand-in for Azure's storage, where it is installed (`npm install -g azurite`).

Its account and key are the ones that every tool for it knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from tests.support.free_ports import free_ports

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "objects"
VERSION = "2021-12-02"
WAIT_SECONDS = 30.0


def missing() -> str:
    return "" if shutil.which("azurite-blob") else "Azurite is not installed: npm install -g azurite"


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """Runs Azurite with one container; yields its endpoint."""
    (port,) = free_ports(1)
    command = [
        "azurite-blob", "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry",
        "--blobHost", "127.0.0.1", "--blobPort", str(port),
    ]  # fmt: skip
    with (folder / "azurite.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not _made_container(port):
            assert process.poll() is None, (folder / "azurite.log").read_text(errors="replace")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        process.kill()
        process.wait()


def _made_container(port: int) -> bool:
    date = formatdate(usegmt=True)
    named = f"x-ms-date:{date}\nx-ms-version:{VERSION}\n/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    signed = hmac.new(base64.b64decode(KEY), ("PUT" + "\n" * 12 + named).encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{ACCOUNT}/{CONTAINER}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", VERSION)
    request.add_header("Authorization", f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}")
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except OSError:
        return False
    return True
