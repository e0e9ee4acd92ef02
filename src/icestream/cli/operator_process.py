"""What `icestream lake serve` and `icestream pipeline run` need beside accounts: the secret of their role, and settings
without tokens of their own. Known before the process starts, if its broker runs; else the link to it says why not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from icestream import errors
from icestream.admin_api.security_api import WHOAMI
from icestream.cli.broker_connection import BrokerCalls, Document, call_broker, require_local_socket
from icestream.cli.broker_location import Target
from icestream.processes.node.bind_check import check_beside_accounts
from icestream.security.role_secrets import SECRET_FILE_VARIABLE, read_role_secret

if TYPE_CHECKING:
    from icestream.settings import Settings


def prepare_role(target: Target, settings: Settings, role: str) -> Callable[[], str]:
    """A function that reads the secret of the role, empty without one.

    Raises ConfigurationError if the broker runs and has accounts, and the process could not work beside them.
    """
    data_dir = require_local_socket(target).parent

    def read_secret() -> str:
        return read_role_secret(data_dir, role, os.environ)

    secret = read_secret()
    if _has_accounts(target):
        check_beside_accounts(settings)
        if not secret:
            raise errors.ConfigurationError(
                f"the broker has accounts, and this {role} process has no secret to prove its role",
                hint=f"run `icestream security process-secret {role}` as an administrator on the broker's machine, or "
                f"set {SECRET_FILE_VARIABLE} to a copy of that file (mode 0600)",
            )
    return read_secret


def _has_accounts(target: Target) -> bool:
    """False too if the broker does not run: the process waits for it."""

    async def read_caller(broker: BrokerCalls) -> Document:
        return await broker.call(WHOAMI)

    try:
        return bool(call_broker(target, read_caller, is_anonymous=True)["is_enabled"])
    except errors.ConnectionLost:
        return False
