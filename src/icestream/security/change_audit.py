"""The audit of administrative changes, as those that make them use it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.resource import CLUSTER, Resource


class ChangeAudit(Protocol):
    """The audit, as far as administrative changes need it."""

    def change(
        self, session: AccessSession, action: Action, resource: Resource, detail: str
    ) -> AbstractAsyncContextManager[None]:
        """Records the change durably before the body makes it. Raises Refused if that is not possible."""


def cluster_change(
    audit: ChangeAudit | None, session: AccessSession, detail: str, action: Action = Action.ADMIN
) -> AbstractAsyncContextManager[None]:
    """Records a change of the cluster, or of its settings, that the body makes. Nothing while security is off: a broker
    without accounts has no audit. `audit` None: the same."""
    if audit is None or session.is_unrestricted:
        return contextlib.nullcontext()
    return audit.change(session, action, CLUSTER, detail)
