"""Sessions for clients of the lake process, and decisions for them: the implementations of admin_api/session_api.py.

A session belongs to the connection that opened it and to no other. At SESSIONS_PER_CONNECTION_MAX the one that was used
least recently is closed: its next call is refused with UnknownHandle, and the process opens a session again.
"""

from __future__ import annotations

from icestream import errors, limits
from icestream.admin_api import session_api
from icestream.admin_api.admin_call import EmptyAnswer
from icestream.admin_api.session_api import (
    DecideRights,
    OpenedSession,
    OpenSession,
    RightDecision,
    RightDecisions,
    SessionCredential,
    SessionOnly,
)
from icestream.broker.guarded_broker import BrokerDoor
from icestream.frontends.native.public_calls import Call, Caller
from icestream.internal_api.implementation import implements, native_calls
from icestream.security.action import parse_action
from icestream.security.credential import BearerCredential, CertificateCredential, Credential, PasswordCredential
from icestream.security.resource import Resource


class SessionCalls:
    def __init__(self, door: BrokerDoor) -> None:
        self._door = door

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    @implements(session_api.OPEN_SESSION)
    async def open_session(self, caller: Caller, request: OpenSession) -> OpenedSession:
        """Raises Unauthenticated, InvalidInput for a credential of two kinds."""
        client = await self._door.authenticate(_credential(request.credential), request.address, request.listener)
        return OpenedSession(
            session=caller.connection.add_session(client),
            principal=str(client.session.identity.principal),
            expires_us=client.session.identity.expires_us,
            is_enabled=self._door.is_secured,
        )

    @implements(session_api.CLOSE_SESSION)
    async def close_session(self, caller: Caller, request: SessionOnly) -> EmptyAnswer:
        caller.connection.close_session(request.session)
        return EmptyAnswer()

    @implements(session_api.DECIDE_RIGHTS)
    async def decide_rights(self, caller: Caller, request: DecideRights) -> RightDecisions:
        """Each denial is recorded for the audit, as that of a request, unless it only hides an item of a listing.
        Raises what ended the session."""
        if len(request.rights) > limits.DECISIONS_PER_CALL_MAX:
            raise errors.InvalidInput(
                f"{len(request.rights)} rights in one call", hint=f"at most {limits.DECISIONS_PER_CALL_MAX}"
            )
        rights = [(parse_action(action), Resource.parse(resource)) for action, resource in request.rights]
        decisions = [
            caller.broker.decide(action, resource, is_recorded=not request.is_listing) for action, resource in rights
        ]
        return RightDecisions(
            decisions=[RightDecision(is_allowed=each.is_allowed, reason=each.reason) for each in decisions],
            revision=self._door.policy_revision,
            is_enabled=self._door.is_secured,
        )


def _credential(fields: SessionCredential) -> Credential | None:
    """The credential of a request; None for none. Raises InvalidInput."""
    kinds = [bool(fields.token), bool(fields.user or fields.password), bool(fields.certificate)]
    if sum(kinds) > 1:
        raise errors.InvalidInput("credential of more than one kind", hint="send a token, or a user and a password")
    if fields.token:
        return BearerCredential(fields.token)
    if fields.certificate:
        return CertificateCredential(fields.certificate)
    return PasswordCredential(fields.user, fields.password) if kinds[1] else None
