"""The decision: may this identity do this to that resource? Pure.

    AccessPolicy   roles by name, grants, the revision of the metadata store at which they were read
    AccessRole     a name and rules
    AccessRule     actions and a pattern
    Grant          a principal, and a role or a single rule; `is_parked` while its topic is deleted (hazard 117).
                   A `scope` narrows a role to a namespace, a topic or a schema: the rules give what they give
                   there. Administration has no narrower form, so a role with a scope does not give it

Rules only allow; what no rule allows is denied. Every action includes `describe` of the same resource: an answer would
have to lie about it otherwise. An identity has the roles and rules that are granted to its principal, the roles of its
credential, and what is granted to `anonymous`. A rule with the action `admin` on the cluster
allows every action on every resource, except on what belongs to the node itself: `/system/…` can be read, nothing else,
and by no wildcard: a rule for `/*/*` is not meant for the audit. A principal of Danube's shared key, and `anonymous`,
never administer, whatever is granted to them (hazard 116).
A rule that allows to describe something in a namespace allows to describe the namespace. A rule about MQTT topics gives
produce, consume and describe of them, whatever else it names (mqtt_rights.py).

While security is off (`AccessPolicy.is_enabled` is False) everything is allowed, as on a broker that was never secured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from icestream.security.action import Action
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, PrincipalKind
from icestream.security.resource import CLUSTER, Pattern, Resource, ResourceKind

SYSTEM_NAMESPACE: Final = "system"
# What an administrator may do there: its topics are written by the broker alone (hazard 121).
_SYSTEM_ACTIONS: Final = frozenset(
    {Action.CONSUME, Action.DESCRIBE, Action.TABLE_READ, Action.QUERY, Action.BACKUP, Action.MAINTAIN}
)
# What a rule about MQTT topics can give: never a table, a query or a backup (hazard 118).
MQTT_ACTIONS: Final = frozenset({Action.PRODUCE, Action.CONSUME, Action.DESCRIBE})


class AccessRule(NamedTuple):
    """Allows actions on the resources of a pattern, of those in `scope` if there is one."""

    actions: frozenset[Action]
    pattern: Pattern
    scope: Pattern | None = None

    def __str__(self) -> str:
        text = f"{','.join(sorted(action.value for action in self.actions))} on {self.pattern}"
        return text if self.scope is None else f"{text}, in {self.scope}"

    @property
    def is_administration(self) -> bool:
        """True for a rule that allows everything."""
        return Action.ADMIN in self.actions and self.pattern.kind is ResourceKind.CLUSTER and self.scope is None

    def allows(self, action: Action, resource: Resource, claims: Mapping[str, str]) -> bool:
        if self.is_administration:
            return True
        if action not in self.actions and action is not Action.DESCRIBE:
            return False
        if self.scope is not None and not self.scope.encloses(resource):
            is_shown = action is Action.DESCRIBE and self.scope.reaches_into(resource, {})
            if not is_shown:
                return False
        if resource.kind is ResourceKind.MQTT and action not in MQTT_ACTIONS:
            return False
        if is_system(resource) and self.pattern.segments[:1] != (SYSTEM_NAMESPACE,):
            return False
        if self.pattern.matches(resource, claims):
            return True
        return action is Action.DESCRIBE and self.pattern.reaches_into(resource, claims)


class AccessRole(NamedTuple):
    name: str
    rules: tuple[AccessRule, ...]


class Grant(NamedTuple):
    """What a principal may do: the rules of a role, or one rule. Exactly one of `role` and `rule` is set."""

    grant_id: str
    principal: Principal
    role: str = ""
    rule: AccessRule | None = None
    is_parked: bool = False
    scope: Pattern | None = None

    def __str__(self) -> str:
        place = "" if self.scope is None else f" in {self.scope}"
        return f"grant {self.grant_id} of {self.principal}: {f'role {self.role}' if self.role else self.rule}{place}"


class CredentialRole(NamedTuple):
    """A role that the credential itself brings."""

    name: str

    def __str__(self) -> str:
        return f"role {self.name} of the credential"


RuleSource = Grant | CredentialRole


class Decision(NamedTuple):
    """Whether it is allowed, and by what. `reason` names the deciding rule, never a secret."""

    is_allowed: bool
    reason: str


class ConsideredRule(NamedTuple):
    """A rule of an identity, and whether it allows: for `security explain`."""

    source: str  # the grant or role that it comes from
    rule: AccessRule
    allows: bool


@dataclass(frozen=True)
class AccessPolicy:
    is_enabled: bool = False
    revision: int = 0
    roles: Mapping[str, AccessRole] = field(default_factory=lambda: MappingProxyType({}))
    grants: Mapping[Principal, tuple[Grant, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def rules_of(self, identity: CallerIdentity) -> Iterator[tuple[RuleSource, AccessRule]]:
        """The rules that an identity has, each with what it comes from, whose text is for people."""
        for principal in dict.fromkeys((identity.principal, ANONYMOUS)):
            for grant in self.grants.get(principal, ()):
                if grant.is_parked:
                    continue
                role = self.roles.get(grant.role)
                rules = (grant.rule,) if grant.rule is not None else (role.rules if role is not None else ())
                if grant.scope is not None:
                    rules = tuple(rule._replace(scope=grant.scope) for rule in rules)
                yield from ((grant, rule) for rule in rules if not _is_void(principal, rule))
        for name in identity.roles:
            if (role := self.roles.get(name)) is not None:
                source = CredentialRole(name)
                yield from ((source, rule) for rule in role.rules if not _is_void(identity.principal, rule))

    def has_same_rules(self, other: AccessPolicy, identity: CallerIdentity) -> bool:
        """True if an identity has the same rules by both policies, so that every decision about it is the same."""
        if self.is_enabled != other.is_enabled:
            return False
        names = set(identity.roles)
        for principal in (identity.principal, ANONYMOUS):
            grants = self.grants.get(principal, ())
            if grants != other.grants.get(principal, ()):
                return False
            names.update(grant.role for grant in grants)
        return all(self.roles.get(name) == other.roles.get(name) for name in names)


def may_administer(principal: Principal) -> bool:
    """False for principals that need no credential, or only Danube's shared key (hazard 116)."""
    return principal.kind not in (PrincipalKind.DANUBE, PrincipalKind.ANONYMOUS)


def _is_void(principal: Principal, rule: AccessRule) -> bool:
    return rule.is_administration and not may_administer(principal)


def is_system(resource: Resource) -> bool:
    """True for what belongs to the broker: namespaces, topics, subscriptions and tables below `system`."""
    has_namespace = resource.kind not in (ResourceKind.SCHEMA, ResourceKind.MQTT)
    return has_namespace and resource.segments[:1] == (SYSTEM_NAMESPACE,)


OPEN_POLICY: Final = AccessPolicy()


def decide(identity: CallerIdentity, action: Action, resource: Resource, policy: AccessPolicy) -> Decision:
    """Whether the identity may do this. Not for internal principals, whose roles list calls instead of actions."""
    if not policy.is_enabled:
        return Decision(True, "security is off")
    if is_closed(action, resource):
        return Decision(False, f"{resource} belongs to the broker")
    for source, rule in policy.rules_of(identity):
        if rule.allows(action, resource, identity.claims):
            return Decision(True, f"{source} ({rule})")
    return no_rule(identity, action, resource)


def is_closed(action: Action, resource: Resource) -> bool:
    """True for what no rule can allow: changes of what belongs to the broker."""
    # A subscription belongs to its consumer: without `alter`, one on the audit could not be moved or deleted.
    is_own = resource.kind is ResourceKind.SUBSCRIPTION
    return is_system(resource) and not is_own and action not in _SYSTEM_ACTIONS


def no_rule(identity: CallerIdentity, action: Action, resource: Resource) -> Decision:
    """The denial for want of a rule."""
    return Decision(False, f"no rule of {identity.principal} allows {action.value} on {resource}")


def explain(
    identity: CallerIdentity, action: Action, resource: Resource, policy: AccessPolicy
) -> tuple[Decision, list[ConsideredRule]]:
    """The decision, and every rule of the identity with what it says about it."""
    considered = [
        ConsideredRule(str(source), rule, rule.allows(action, resource, identity.claims))
        for source, rule in policy.rules_of(identity)
    ]
    return decide(identity, action, resource, policy), considered


def is_administrator(identity: CallerIdentity, policy: AccessPolicy) -> bool:
    """True if the identity may change security itself."""
    return decide(identity, Action.ADMIN, CLUSTER, policy).is_allowed
