"""What the authenticator needs to know about accounts, keys and revocations: a view of the records of this node."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredUser(NamedTuple):
    """A password user. `password_hash` never leaves the authenticator."""

    password_hash: str
    generation: int


class AccountDirectory(Protocol):
    """Answers from memory, as of the last change that this node has applied."""

    def find_user(self, name: str) -> StoredUser | None:
        """The password user of this name; None if there is none, or if it is disabled."""

    def find_service(self, name: str) -> int | None:
        """The generation of the service account; None if there is none, or if it is disabled."""

    def is_revoked(self, token_id: str) -> bool:
        """True if the token of this id was revoked before it expired."""

    def key_ring(self) -> bytes:
        """The wrapped ring of signing keys; empty while security is off."""
