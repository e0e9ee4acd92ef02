"""Rights to MQTT topics: which messages a client may publish and subscribe to. Pure.

A message of MQTT has an MQTT topic (`sensors/1/t`), and a route stores it in a topic of Icestream (`/mqtt/messages`),
which may hold the messages of many devices. Two rights allow to publish or to subscribe, either is enough:

    produce (consume) on the topic of the route     as on every other protocol; of a subscription, on each topic that
                                                    its filter can reach
    produce (consume) on `mqtt:FILTER`              one rule whose filter covers the topic (the subscriber's filter)

The second gives nothing but that: no consume of the topic, no table, query or backup, which have the messages of
others (hazard 118). It does not open topics of the broker itself, whatever routes say.

A filter is compared as the set of topics that it matches, never as if it were a topic: a grant for `a/+` does not allow
`a/#`. Several rules do not add up to one filter. Topics that begin with `$` are matched by no leading wildcard.

`{claims.NAME}` is one level, filled in from the credential. `{claims.client_id}` is the client id of the connection,
unless the credential has a claim of that name. A client chooses its id, so it fills patterns of MQTT only; a session,
and with it a client id in use, belongs to the principal that made it (broker/mqtt/mqtt_service.py). A value with
`+ # / $`, a control character or anything else that is not a plain name fills nothing: the rule does not match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from icestream.security.access_policy import AccessPolicy, Decision, decide, is_system
from icestream.security.action import Action
from icestream.security.principal import CallerIdentity
from icestream.security.resource import Resource

CLIENT_ID_CLAIM: Final = "client_id"


def decide_mqtt(
    identity: CallerIdentity,
    action: Action,
    resource: Resource,
    routes: Sequence[Resource],
    policy: AccessPolicy,
    client_id: str = "",
) -> Decision:
    """Whether the identity may publish to the MQTT topic, or subscribe to the filter, that `resource` is.

    `routes`: the topics of Icestream that store these messages. None of them: only a rule about MQTT topics allows it.
    """
    if not policy.is_enabled:
        return Decision(True, "security is off")
    of_routes = [decide(identity, action, route, policy) for route in routes]
    if of_routes and all(decision.is_allowed for decision in of_routes):
        return of_routes[0]
    if (closed := next((route for route in routes if is_system(route)), None)) is not None:
        return Decision(False, f"{closed} belongs to the broker")
    claims = {CLIENT_ID_CLAIM: client_id, **identity.claims}
    of_mqtt = decide(replace(identity, claims=claims), action, resource, policy)
    if of_mqtt.is_allowed or not of_routes:
        return of_mqtt
    denied = next(route for route, decision in zip(routes, of_routes, strict=True) if not decision.is_allowed)
    return Decision(False, f"{of_mqtt.reason}, or on {denied}")
