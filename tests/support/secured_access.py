"""An access control with a policy written as text, and an authenticator that knows a token for each name.

access = SecuredAccess({"alice": ["produce on /default/orders"]})     the token of alice is `token-of-alice`
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from icestream import errors
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.broker.service import Broker
from icestream.rpc.handshake import HelloCredential
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import AccessPolicy, AccessRule, Grant
from icestream.security.access_session import open_session
from icestream.security.action import parse_actions
from icestream.security.credential import (
    BearerCredential,
    CertificateCredential,
    Credential,
    PasswordCredential,
    ProcessCredential,
)
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, PrincipalKind, local_user
from icestream.security.resource import Pattern

Rules = Mapping[str, Sequence[str]]


class KnownNames:
    """Accepts `token-of-NAME`, and `password-of-NAME` with the name, for any name that is not revoked.

    `gate`: verifications wait for it.
    """

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        match credential:
            case BearerCredential(token) if token.startswith("token-of-") and token[9:] not in self.revoked:
                return CallerIdentity(local_user(token.removeprefix("token-of-")))
            case PasswordCredential(name, password) if password == f"password-of-{name}":
                return CallerIdentity(local_user(name))
            case CertificateCredential(certificate):
                return CallerIdentity(Principal(PrincipalKind.CERTIFICATE, listener, certificate.decode()))
            case ProcessCredential():
                raise AssertionError("process secrets are not verified here")
        raise errors.Unauthenticated("the credential is not valid", hint="send a valid token")

    def is_current(self, identity: CallerIdentity) -> bool:
        return identity.principal.name not in self.revoked

    def forget_tokens(self) -> None:
        """Nothing is cached."""


class FixedSecrets:
    """The secret of the role lake is `secret-of-lake`; the same for the pipeline."""

    def is_valid(self, role: str, secret: str) -> bool:
        return role in ("lake", "pipeline") and secret == f"secret-of-{role}"


def of_role(role: str) -> HelloCredential:
    return HelloCredential(role=role, secret=f"secret-of-{role}")


def policy_of(rules: Rules, revision: int = 1) -> AccessPolicy:
    """A policy with a grant for each text `ACTION,… on PATTERN`, by the name of a user or `anonymous`."""
    grants: dict[Principal, tuple[Grant, ...]] = {}
    for name, texts in rules.items():
        principal = ANONYMOUS if name == "anonymous" else local_user(name)
        parts = [text.split(" on ") for text in texts]
        grants[principal] = tuple(
            Grant(
                f"{name}-{number}",
                principal,
                rule=AccessRule(parse_actions(actions.split(",")), Pattern.parse(pattern)),
            )
            for number, (actions, pattern) in enumerate(parts)
        )
    return AccessPolicy(is_enabled=True, revision=revision, grants=grants)


class SecuredAccess(AccessControl):
    """Security is on, with these rules; `change` replaces them."""

    def __init__(self, rules: Rules) -> None:
        self.names = KnownNames()
        super().__init__(SystemClock(), self.names)
        self._policy = policy_of(rules)

    def revoke(self, name: str) -> None:
        """Revokes the token of a user: it opens nothing, and what it has opened ends."""
        self.names.revoked.add(name)
        self.end_sessions(
            lambda identity: identity.principal == local_user(name), errors.Unauthenticated("the token was revoked")
        )

    async def change(self, rules: Rules) -> None:
        await self.apply(policy_of(rules, self.policy.revision + 1))


def open_door(broker: Broker) -> BrokerDoor:
    """The door of a broker whose security is off."""
    return BrokerDoor(broker, AccessControl(SystemClock()))


def unguarded(broker: Broker) -> GuardedBroker:
    """The use cases of a broker whose security is off."""
    return GuardedBroker(broker, open_session())
