"""AWS Glue by moto, in a thread, with its one fault mended: it ignores VersionId and so loses updates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

REGION = "eu-central-1"
_turn = threading.Lock()


@contextmanager
def glue_server() -> Iterator[str]:
    """Runs the server; yields its address."""
    from moto.core.exceptions import ServiceException
    from moto.glue.responses import GlueResponse
    from moto.server import ThreadedMotoServer

    plain = GlueResponse.update_table

    class ConcurrentModificationException(ServiceException):
        code = "ConcurrentModificationException"

    def update_table(self: Any) -> Any:
        parameters = self.parameters
        with _turn:
            table = self.glue_backend.get_table(parameters["DatabaseName"], parameters["TableInput"]["Name"])
            expected, current = parameters.get("VersionId"), table.as_dict()["VersionId"]
            if expected is not None and str(expected) != str(current):
                raise ConcurrentModificationException(f"version {current}, not {expected}")
            return plain(self)

    GlueResponse.update_table = update_table
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        GlueResponse.update_table = plain
