"""curl, as a person calls it, at a listener with TLS."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any, NamedTuple

from tests.support.certificates import Certificates
from tests.support.lake_run import until


class CurlAnswer(NamedTuple):
    code: int  # with which curl ended
    text: str  # the head and the body

    @property
    def status(self) -> int:
        """Of HTTP; 0 without an answer."""
        status_line = re.match(r"HTTP/1\.1 (\d+)", self.text)
        return int(status_line[1]) if status_line is not None else 0

    @property
    def document(self) -> Any:
        return json.loads(self.text.split("\n\n", 1)[1])


def curl(pem: Certificates, port: int, path: str, *options: str) -> CurlAnswer:
    command = ["curl", "-sS", "--max-time", "20", "-i", "--cacert", str(pem.ca), *options]
    done = subprocess.run([*command, f"https://127.0.0.1:{port}{path}"], capture_output=True, text=True, check=False)
    return CurlAnswer(done.returncode, done.stdout)


def ports_of(pem: Certificates, greeting: str) -> tuple[int, int]:
    """The ports of the broker's HTTP and of its lake process, when that serves; for a broker without accounts."""
    match = re.search(r"https://127\.0\.0\.1:(\d+)/readyz", greeting)
    assert match is not None, greeting
    http_port = int(match[1])

    def lake_port() -> int:
        listens = re.search(r"\[\+\] lake: listens on port (\d+)", curl(pem, http_port, "/readyz?verbose").text)
        return int(listens[1]) if listens is not None else 0

    lake = until(lake_port)
    until(lambda: curl(pem, lake, "/readyz").status == 200)
    return http_port, lake
