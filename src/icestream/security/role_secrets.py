"""Secrets by which processes of a node prove their roles on the local socket (hazard 108).

    lake        the lake process        each has its own, made at the start of the broker and handed over by a pipe at
    pipeline    the pipeline process    each start of the child (processes/child_settings.py)

A secret is never stored and never in an environment. A process that the operator runs has none: it shows a token.
"""

from __future__ import annotations

import hmac
from typing import Final

from icestream.runtime.randomness import Randomness

ROLES: Final = ("lake", "pipeline")
SECRET_BYTES: Final = 32


class RoleSecrets:
    """The secrets of one run of a broker."""

    def __init__(self, randomness: Randomness) -> None:
        self._secrets = {role: randomness.token(SECRET_BYTES).hex() for role in ROLES}

    def role_secret(self, role: str) -> str:
        """The secret of a role, for the process that has it."""
        return self._secrets[role]

    def is_valid(self, role: str, secret: str) -> bool:
        """Whether this is the secret of the role. Takes as long for a wrong one as for the right one."""
        expected = self._secrets.get(role, "")
        return hmac.compare_digest(expected.encode(), secret.encode("utf-8", "replace")) and bool(expected)
