"""The records of security in the metadata store, and their keys. Pure.

    /security/enabled                          SwitchRecord. While it exists, security is on. Created if absent, never
                                               deleted by a running node (hazard 112)
    /security/changes                          ChangesRecord: rewritten by each change, compared by the next
    /security/keys                             the ring of signing keys, wrapped (hazard 119): bytes of their own form
    /security/users/{name}                     AccountRecord of a password user
    /security/services/{name}                  AccountRecord of a service account
    /security/roles/{name}                     RoleRecord
    /security/grants/{id}                      GrantRecord
    /security/topic_grants/{namespace}/{topic}/{id}   GrantRecord for exactly this topic, a subscription of it or a role
                                               in it: parked in the transaction that deletes the topic (hazard 117)
    /security/tokens/{id}                      TokenRecord of an issued token; expires with the token
    /security/revoked/{id}                     RevokedRecord; expires when the token would have expired

Each change is one transaction that compares `/security/changes` with the revision that it was planned for, so bounds,
references and "one administrator is left" hold for the state that it applies to, on every node.

A generation is the serial number of a change, so it rises over all accounts: an account that is created again never has
the generation of a token of its predecessor.

Values are JSON, so that an operator can read them. A record that cannot be decoded gives no right: a grant, role or
account is ignored, a revocation and the switch are in force by their key alone.
"""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from icestream import errors
from icestream.model.topic_name import TopicName
from icestream.security.access_policy import MQTT_ACTIONS, AccessRole, AccessRule, Grant
from icestream.security.action import parse_actions
from icestream.security.principal import Principal
from icestream.security.resource import Pattern, ResourceKind, is_plain

SECURITY: Final = "/security/"
VERSION: Final = 1  # of these records: a node that knows no version would serve everybody
ENABLED: Final = "/security/enabled"
CHANGES: Final = "/security/changes"
KEY_RING: Final = "/security/keys"
USERS: Final = "/security/users/"
SERVICES: Final = "/security/services/"
ROLES: Final = "/security/roles/"
GRANTS: Final = "/security/grants/"
TOPIC_GRANTS: Final = "/security/topic_grants/"
TOKENS: Final = "/security/tokens/"
REVOKED: Final = "/security/revoked/"


class SwitchRecord(msgspec.Struct, frozen=True):
    """Security is on, since when and by which version of these records."""

    enabled_ms: int
    version: int = VERSION


class ChangesRecord(msgspec.Struct, frozen=True):
    serial: int  # the number of changes so far


class AccountRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A password user or a service account."""

    generation: int  # tokens of an older one are revoked
    created_ms: int
    password_hash: str = ""  # of a user only
    is_disabled: bool = False


class RuleRecord(msgspec.Struct, frozen=True):
    """A rule as it was written: `actions` may be groups."""

    actions: list[str]
    resource: str

    def parse(self) -> AccessRule:
        """The rule. Raises InvalidInput."""
        actions, pattern = parse_actions(self.actions), Pattern.parse(self.resource)
        if pattern.kind is ResourceKind.MQTT and not actions & MQTT_ACTIONS:
            raise errors.InvalidInput(
                f"{','.join(self.actions)[:100]} is not possible on an MQTT topic",
                hint="grant read or write there; tables, queries and backups are of the topic that stores the messages",
            )
        return AccessRule(actions, pattern)


class RoleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    rules: list[RuleRecord]
    is_built_in: bool = False

    def parse(self, name: str) -> AccessRole:
        """The role. Raises InvalidInput."""
        return AccessRole(name, tuple(rule.parse() for rule in self.rules))


class GrantRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of `role` and `rule` is set.

    scope     of a role: where it applies, such as `/shop/orders` or `namespace:/shop`; empty: everywhere
    binding   the id that Danube's tools gave to the grants of several roles; empty for a grant of its own
    """

    principal: str
    created_ms: int
    role: str = ""
    rule: RuleRecord | None = None
    is_parked: bool = False
    scope: str = ""
    binding: str = ""

    def parse(self, grant_id: str) -> Grant:
        """The grant. Raises InvalidInput."""
        rule = self.rule.parse() if self.rule is not None else None
        scope = parse_scope(self.scope) if self.scope else None
        if scope is not None and rule is not None:
            raise errors.InvalidInput("a scope narrows a role", hint="name the resource in the rule")
        return Grant(grant_id, Principal.parse(self.principal), self.role, rule, self.is_parked, scope)


_SCOPES: Final = (ResourceKind.NAMESPACE, ResourceKind.TOPIC, ResourceKind.SCHEMA)


def parse_scope(text: str) -> Pattern:
    """The part of the cluster that a role is granted in. Raises InvalidInput."""
    scope = Pattern.parse(text)
    if scope.kind not in _SCOPES or not all(is_plain(segment) for segment in scope.segments):
        raise errors.InvalidInput(
            f"{text[:200]!r} is not a scope",
            hint="a topic (/shop/orders), a namespace (namespace:/shop) or a schema (schema:/orders-value)",
        )
    return scope


def canonical_scope(text: str) -> str:
    """The one text of a scope; empty for that of the whole cluster. Raises InvalidInput."""
    return str(parse_scope(text)) if text else ""


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An issued token, without the token itself."""

    principal: str
    generation: int
    created_ms: int
    expires_ms: int
    note: str = ""


class RevokedRecord(msgspec.Struct, frozen=True):
    revoked_ms: int
    expires_ms: int


Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode(kind: type[Record], value: bytes) -> Record:
    """Decodes a record. Raises InvalidInput."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.InvalidInput(f"not a {kind.__name__}: {error}") from None


# --- keys -------------------------------------------------------------------------------------------------------------


def user_key(name: str) -> str:
    return USERS + quoted(name)


def service_key(name: str) -> str:
    return SERVICES + quoted(name)


def role_key(name: str) -> str:
    return ROLES + quoted(name)


def token_key(token_id: str) -> str:
    return TOKENS + quoted(token_id)


def revoked_key(token_id: str) -> str:
    return REVOKED + quoted(token_id)


def quoted(name: str) -> str:
    """A name as the last part of a key: names of accounts may contain `/`."""
    return quote(name, safe="")


def unquoted(part: str) -> str:
    return unquote(part)


def grant_key(grant_id: str, rule: RuleRecord | None, scope: str = "") -> str:
    """The key of a grant. Raises InvalidInput for a malformed resource or scope."""
    place = scope or (rule.resource if rule is not None else "")
    topic = exact_topic(Pattern.parse(place)) if place else None
    return GRANTS + grant_id if topic is None else topic_grants_prefix(topic) + grant_id


def topic_grants_prefix(topic: TopicName) -> str:
    """The prefix of the grants for exactly this topic."""
    return f"{TOPIC_GRANTS}{topic.namespace}/{topic.name}/"


def exact_topic(pattern: Pattern) -> TopicName | None:
    """The one topic that a pattern is about, itself or by a subscription; None for any other pattern."""
    if pattern.kind not in (ResourceKind.TOPIC, ResourceKind.SUBSCRIPTION):
        return None
    names = pattern.segments[:2]
    return TopicName(*names) if len(names) == 2 and all(is_plain(name) for name in names) else None
