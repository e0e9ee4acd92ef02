"""As much of GCS's XML protocol as objects that are written once need. No server that speaks it can be installed: the
known stand-ins speak the JSON protocol. It proves how GCS is addressed, not how GCS behaves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "objects"
TIME = "2026-01-01T00:00:00.000Z"


class ObjectHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, *_: object) -> None: ...

    @property
    def name(self) -> str:
        path = urlsplit(self.path).path.removeprefix(f"/{BUCKET}").removeprefix("/")
        return unquote(path)

    def say_object(self, data: bytes) -> None:
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if byte_range is None:
            self.say(200, data)
            return
        first, last = int(byte_range[1]), min(int(byte_range[2]), len(data) - 1)
        self.say(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def say(self, status: int, body: bytes = b"", also: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (also or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:  # as the library calls it
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["x-goog-if-generation-match"] == "0" and self.name in self.objects:
            self.say(412)
            return
        self.objects[self.name] = data
        self.say(200)

    def do_GET(self) -> None:
        if not self.name:
            self.say(200, self.listed())
        elif self.name in self.objects:
            self.say_object(self.objects[self.name])
        else:
            self.say(404)

    do_HEAD = do_GET  # noqa: N815

    def do_DELETE(self) -> None:
        self.say(204 if self.objects.pop(self.name, None) is not None else 404)

    def listed(self) -> bytes:
        query = parse_qs(urlsplit(self.path).query)
        prefix = query.get("prefix", [""])[0]
        names = [name for name in sorted(self.objects) if name.startswith(prefix)]
        if "delimiter" in query:
            names = [name for name in names if "/" not in name.removeprefix(prefix)]
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[name])}</Size>"
            f"<LastModified>{TIME}</LastModified><ETag>&quot;1&quot;</ETag></Contents>"
            for name in names
        )
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()


@contextmanager
def gcs_server() -> Iterator[str]:
    """Runs the server; yields its address."""
    handler = type("Objects", (ObjectHandler,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
