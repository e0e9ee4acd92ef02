"""PySpark's server for accumulator updates, to which Java keeps one connection.

Java disconnects at each end of a session, orderly or not. PySpark reports that as an error, with a traceback on stderr.
It carries no information: a round that was cut off fails by itself. All other errors of the server are reported as
before.
"""

from __future__ import annotations

import sys
from socketserver import BaseServer
from typing import Any, Final

DISCONNECTS: Final = (EOFError, ConnectionError)


def ignore_java_disconnect(server: BaseServer) -> None:
    report_error = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), DISCONNECTS):
            report_error(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]
