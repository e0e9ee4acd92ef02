"""PySpark's server for updates of accumulators, to which Java keeps one connection.

Java leaves it at each end of a session, in order or not. PySpark takes that for an error of its own and prints a page
about it on stderr. What it means is known elsewhere: a round that was cut off fails by itself. Everything else that
this server finds wrong is said as before.
"""

from __future__ import annotations

import sys
from socketserver import BaseServer
from typing import Any, Final

JAVA_LEFT: Final = (EOFError, ConnectionError)


def let_java_leave(server: BaseServer) -> None:
    """Nothing is said of it."""
    say = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), JAVA_LEFT):
            say(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]
