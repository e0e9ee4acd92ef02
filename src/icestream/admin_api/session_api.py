"""Sessions of clients that reach the broker through another process of this node, and decisions for them.

The lake process verifies nothing itself: it opens a session for the credential of a request, names the session in the
calls that it forwards (the argument `session` of any call), and asks for decisions about what it does by itself. A
session ends with `security_close_session`, or with the connection that opened it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream.admin_api.admin_call import AdminCall, Answer, EmptyAnswer
from icestream.model.field_metadata import Doc


class SessionCredential(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one of: a token, a user with a password, a client certificate (DER); nothing for `anonymous`."""

    token: str = ""
    user: str = ""
    password: str = ""
    certificate: bytes = b""

    def __repr__(self) -> str:
        return "SessionCredential(…)"  # none of its values may reach a log


class OpenSession(msgspec.Struct, kw_only=True):
    credential: SessionCredential = msgspec.field(default_factory=SessionCredential)
    address: Annotated[str, Doc("Of the client.")] = ""
    listener: Annotated[str, Doc("Which it connected to: `lake`, `iceberg`.")] = ""


class SessionOnly(msgspec.Struct):
    session: int


class DecideRights(msgspec.Struct, kw_only=True):
    """`rights`: pairs of an action and a resource, as their texts: `["table-read", "topic:/shop/orders"]`."""

    session: int
    rights: list[tuple[str, str]]
    is_listing: Annotated[bool, Doc("A denial only hides something: it is no event of the audit.")] = False


class OpenedSession(Answer):
    session: Annotated[int, Doc("Names the session in later calls of this connection.")]
    principal: str
    expires_us: Annotated[int | None, Doc("When the credential ends, microseconds since 1970; null: it does not.")]
    is_enabled: Annotated[bool, Doc("False while security is off: then everything is allowed.")]


class RightDecision(Answer):
    is_allowed: bool
    reason: Annotated[str, Doc("The rule that allows it, or that none does.")]


class RightDecisions(Answer):
    decisions: Annotated[list[RightDecision], Doc("One for each right, in their order.")]
    revision: Annotated[int, Doc("Of the policy.")]
    is_enabled: bool


OPEN_SESSION: Final = AdminCall("security_open_session", OpenSession, OpenedSession)
CLOSE_SESSION: Final = AdminCall("security_close_session", SessionOnly, EmptyAnswer)
DECIDE_RIGHTS: Final = AdminCall("security_decide", DecideRights, RightDecisions)
