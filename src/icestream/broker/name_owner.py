"""Names of producers and subscriptions belong to the principal that used them first (hazard 115). Pure.

A producer of the same name fences the former one, and a consumer of a subscription gets its messages: another principal
may do that only with the right to alter the topic or the subscription. A name from before security was switched on,
and a subscription that an operator created, have no owner until a client uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from icestream.broker.records import StoredIdentity


def _allow() -> None:
    pass


class NameUser(NamedTuple):
    """The user of a name. `take_over` raises PermissionDenied unless it may take over a name of another principal."""

    principal: str = ""  # empty while security is off
    take_over: Callable[[], object] = _allow
    identity: StoredIdentity | None = None  # for what it sets and the broker does later

    def claim(self, owner: str) -> str:
        """Returns the owner from now on. Raises PermissionDenied if another owns the name and it may not be taken."""
        if owner and self.principal != owner:
            self.take_over()
        return owner or self.principal


UNNAMED = NameUser()
