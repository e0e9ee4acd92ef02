from icestream.server.broker_node import BrokerNode, open_configured_log
from icestream.server.component_options import broker_options, log_options
from icestream.server.presentation.greeting import greeting, recovery_lines
from icestream.server.serving import run, serve

__all__ = [
    "BrokerNode",
    "broker_options",
    "greeting",
    "log_options",
    "open_configured_log",
    "recovery_lines",
    "run",
    "serve",
]
