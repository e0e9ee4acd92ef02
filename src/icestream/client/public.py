"""The public names of `icestream`, each imported on first access, so that `import icestream` stays fast."""

from __future__ import annotations

import importlib
from typing import Any, Final

_VERSION: Final = "__version__"
_MODULES: Final = ("errors", "testing")
# The module of icestream.client that defines each name.
_MODULE_OF: Final = {
    "connect": "client",
    "connect_sync": "blocking",
    "Client": "client",
    "ClientTls": "client",
    "TopicInfo": "client",
    "TopicPolicies": "client",
    "Producer": "producer",
    "MessageId": "batch",
    "Subscription": "subscription",
    "Message": "message",
    "Gap": "message",
    "Stall": "stalls",
    "ArrowBatch": "arrow",
    "BlockingClient": "blocking",
    "BlockingProducer": "blocking",
    "BlockingSubscription": "blocking",
}
NAMES: Final = (*_MODULE_OF, *_MODULES, _VERSION)


def __getattr__(name: str) -> Any:
    """The `__getattr__` of the package `icestream`. Raises AttributeError."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"icestream.client.{_MODULE_OF[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"icestream.{name}")
    if name == _VERSION:
        return importlib.import_module("importlib.metadata").version("icestream")
    raise AttributeError(f"module 'icestream' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(NAMES)
