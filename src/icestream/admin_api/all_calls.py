"""Every declared call by its name, and the names of those that only the local socket serves."""

from __future__ import annotations

from typing import Any, Final

from icestream.admin_api import (
    backup_api,
    cluster_api,
    erasure_api,
    mqtt_api,
    namespace_api,
    node_api,
    security_api,
    session_api,
    subscription_api,
    topic_api,
)
from icestream.admin_api.admin_call import AdminCall

ADMIN_CALLS: Final[dict[str, AdminCall[Any, Any]]] = {
    value.name: value
    for module in (
        namespace_api,
        topic_api,
        subscription_api,
        node_api,
        cluster_api,
        erasure_api,
        session_api,
        security_api,
        mqtt_api,
        backup_api,
    )
    for value in vars(module).values()
    if isinstance(value, AdminCall)
}
LOCAL_CALLS: Final = frozenset(name for name, call in ADMIN_CALLS.items() if not call.is_public)
