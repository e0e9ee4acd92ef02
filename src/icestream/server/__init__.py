from icestream.server.greeting import greeting, recovery_lines
from icestream.server.node import Node, open_configured_log
from icestream.server.options import broker_options, log_options
from icestream.server.serving import run, serve

__all__ = [
    "Node",
    "broker_options",
    "greeting",
    "log_options",
    "open_configured_log",
    "recovery_lines",
    "run",
    "serve",
]
