"""The public names of the package, each imported when it is first asked for: `import icestream` loads none."""

from __future__ import annotations

import importlib
from typing import Any, Final

_VERSION: Final = "__version__"
_MODULES: Final = ("errors", "testing")
_HOMES: Final = {
    "connect": "connect",
    "connect_sync": "connect",
    "Client": "client",
    "TopicInfo": "topic_info",
    "TopicPolicies": "topic_info",
    "Producer": "producer",
    "MessageId": "batch",
    "Subscription": "subscription",
    "Message": "message",
    "Gap": "asked",
    "Stall": "stalls",
    "ArrowBatch": "arrow",
    "BlockingClient": "blocking",
    "BlockingProducer": "blocking_producer",
    "BlockingSubscription": "blocking_subscription",
}
NAMES: Final = (*_HOMES, *_MODULES, _VERSION)


def __getattr__(name: str) -> Any:
    """For `icestream.<name>`: this function is the `__getattr__` of the package."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"icestream.client.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"icestream.{name}")
    if name == _VERSION:
        return importlib.import_module("importlib.metadata").version("icestream")
    raise AttributeError(f"module 'icestream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(NAMES)
