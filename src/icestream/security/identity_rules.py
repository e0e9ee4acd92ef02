"""The rules of one identity by one policy, indexed: decides as access_policy.decide does, about many rights. Pure.

A policy change decides every open producer and consumer again (hazard 124). A principal may have 200 grants, roles more
rules each, and a connection 100,000 producers: to compare each with every rule would take minutes.

    key       positions and values of the literal segments of a rule's pattern, claims filled in: `/shop/*` (0, shop)
    lookup    for each combination of positions that occurs, the same segments of the resource: a rule that matches has
              them, so all rules that can match are among those. `AccessRule.allows` decides about these few

Patterns have few combinations of positions, four for topics, so a decision does not take longer with more rules.
"""

from __future__ import annotations

from icestream.security.access_policy import AccessPolicy, AccessRule, is_closed
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity
from icestream.security.resource import Resource, ResourceKind

Positions = tuple[int, ...]
Values = tuple[str, ...]


class IdentityRules:
    def __init__(self, identity: CallerIdentity, policy: AccessPolicy) -> None:
        self._claims = identity.claims
        self._is_enabled = policy.is_enabled
        self._rules = [rule for _, rule in policy.rules_of(identity)]
        self._index: dict[Positions, dict[Values, list[AccessRule]]] = {}
        for rule in self._rules:
            literals = rule.pattern.literals(self._claims)
            if literals is not None:
                positions, values = tuple(at for at, _ in literals), tuple(value for _, value in literals)
                self._index.setdefault(positions, {}).setdefault(values, []).append(rule)

    def is_allowed(self, action: Action, resource: Resource) -> bool:
        """Whether the policy allows the identity to do this."""
        if not self._is_enabled:
            return True
        if is_closed(action, resource):
            return False
        if resource.kind is ResourceKind.NAMESPACE:
            # Shown by rules for what lies in it, whose patterns have more segments.
            return any(rule.allows(action, resource, self._claims) for rule in self._rules)
        segments = resource.segments
        for positions, by_values in self._index.items():
            if positions and positions[-1] >= len(segments):
                continue
            rules = by_values.get(tuple([segments[at] for at in positions]), ())
            for rule in rules:
                if rule.allows(action, resource, self._claims):
                    return True
        return False
