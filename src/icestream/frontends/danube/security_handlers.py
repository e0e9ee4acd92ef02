"""Danube's calls for roles and bindings, on the records of security that `icestream security` changes too.

A role of Danube has permissions and no resource. Here it is a role whose rules are about everything, and a binding is a
grant of each of its roles in the binding's scope, under the binding's id:

    permission         rules
    Lookup             describe of topics
    Produce            produce, and create, because the first producer creates its topic
    Consume            consume, of topics and their subscriptions
    ManageNamespace    create, alter, delete of namespaces
    ManageTopic        create, alter, delete of topics and their subscriptions
    ManageSchema       describe, alter, delete of schemas
    ManageBroker       describe of the cluster
    ManageCluster      admin: everything; nothing in a binding that is not of the cluster, and never for a principal of
                       Danube's shared key (hazard 116)
    Replicate          refused: there is nothing that it would allow here

    scope              resource_name                   scope of the grant
    cluster            empty                           none
    namespace          default, or /default            namespace:/default
    topic              /default/orders, a partition    topic:/default/orders
                       any other name                  schema:/NAME, as Danube asks about a schema by its name

    principal_type     principal
    user, service_account     danube:user:NAME, danube:service_account:NAME: tokens that Danube's tools mint
    KIND:ISSUER               KIND:ISSUER:NAME, such as user:local:alice
    anonymous                 anonymous, which is its name too

Every role and every grant of a role is shown, whichever tool made it: a role by the permissions that it includes, a
grant that is no binding by its own id. Grants of single rules and parked grants are not shown. All calls need `admin`
on the cluster; changes are in the audit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final

from icestream import errors
from icestream.frontends.danube.handlers import Call, CallFailed, HandlerTable, decode
from icestream.frontends.danube.partition_names import base_name
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.model.topic_name import check_namespace
from icestream.security.access_policy import AccessRole, Grant
from icestream.security.action import Action
from icestream.security.change_audit import ChangeAudit
from icestream.security.danube_tokens import PRINCIPAL_TYPES
from icestream.security.principal import ANONYMOUS, Principal, PrincipalKind
from icestream.security.resource import (
    CLUSTER,
    Pattern,
    ResourceKind,
    namespace_resource,
    schema_resource,
    topic_resource,
)
from icestream.security.security_changes import bound_grants
from icestream.security.security_records import RuleRecord, canonical_scope
from icestream.security.security_store import SecurityStore, security_is_off

_TOPICS: Final = "/*/*"
PERMISSIONS: Final[Mapping[str, RuleRecord]] = MappingProxyType({
    "Lookup": RuleRecord(["describe"], _TOPICS),
    "Produce": RuleRecord(["produce", "create"], _TOPICS),
    "Consume": RuleRecord(["consume"], _TOPICS),
    "ManageNamespace": RuleRecord(["describe", "create", "alter", "delete"], "namespace:/**"),
    "ManageTopic": RuleRecord(["describe", "create", "alter", "delete"], _TOPICS),
    "ManageSchema": RuleRecord(["describe", "alter", "delete"], "schema:/*"),
    "ManageBroker": RuleRecord(["describe"], "cluster"),
    "ManageCluster": RuleRecord(["admin"], "cluster"),
})  # fmt: skip


class SecurityHandlers:
    """The calls of Danube's admin tools about roles and bindings."""

    def __init__(self, security: SecurityStore, audit: ChangeAudit) -> None:
        self._security = security
        self._audit = audit

    def table(self) -> HandlerTable:
        handlers: dict[str, Callable[[bytes, Call], Awaitable[bytes]]] = {
            "CreateRole": self.create_role,
            "GetRole": self.role,
            "ListRoles": self.roles,
            "DeleteRole": self.delete_role,
            "CreateBinding": self.create_binding,
            "GetBinding": self.binding,
            "ListBindings": self.bindings,
            "ListAllBindings": self.all_bindings,
            "DeleteBinding": self.delete_binding,
        }
        return HandlerTable({
            f"/danube_admin.SecurityAdmin/{name}": self._for_administrators(handler)
            for name, handler in handlers.items()
        })  # fmt: skip

    def _for_administrators(
        self, handler: Callable[[bytes, Call], Awaitable[bytes]]
    ) -> Callable[[bytes, Call], Awaitable[bytes]]:
        async def serve(raw: bytes, call: Call) -> bytes:
            if not self._security.state.is_enabled:
                raise CallFailed("FAILED_PRECONDITION", security_is_off())
            call.client.session.require(Action.ADMIN, CLUSTER)
            return await handler(raw, call)

        return serve

    def _changing(self, call: Call, detail: str) -> AbstractAsyncContextManager[None]:
        return self._audit.change(call.client.session, Action.ADMIN, CLUSTER, detail)

    # --- roles ---

    async def create_role(self, raw: bytes, call: Call) -> bytes:
        """Creates a role or replaces its permissions, as Danube does; not one with rules that are no permissions."""
        definition = decode(pb.Role, raw).role
        rules = [_rule(permission) for permission in dict.fromkeys(definition.permissions)]
        if definition.system:
            raise errors.InvalidInput("system roles are built in", hint="create the role without `system`")
        former = self._security.state.roles.get(definition.name)
        if former is not None and not set(former.rules) <= {record.parse() for record in PERMISSIONS.values()}:
            raise errors.AlreadyExists(
                f"role {definition.name} has rules that are no permissions of Danube",
                hint="change it with `icestream security roles set`, or choose another name",
            )
        async with self._changing(call, f"set the rules of role {definition.name}"):
            await self._security.put_role(definition.name, rules)
        return _success()

    async def role(self, raw: bytes, call: Call) -> bytes:
        return pb.Role(role=self._definition(decode(pb.RoleRequest, raw).name)).SerializeToString()

    async def roles(self, raw: bytes, call: Call) -> bytes:
        names = sorted(self._security.state.roles)
        return pb.RoleListResponse(roles=[self._definition(name) for name in names]).SerializeToString()

    async def delete_role(self, raw: bytes, call: Call) -> bytes:
        name = decode(pb.RoleRequest, raw).name
        if self._definition(name).system:
            raise CallFailed("FAILED_PRECONDITION", errors.InvalidInput(f"role {name} is built in"))
        async with self._changing(call, f"delete role {name}"):
            await self._security.delete_role(name)
        return _success()

    def _definition(self, name: str) -> pb.RoleDefinition:
        state = self._security.state
        role = state.roles.get(name)
        if role is None:
            raise CallFailed("NOT_FOUND", errors.UnknownAccount(f"there is no role {name[:100]!r}"))
        return pb.RoleDefinition(
            name=name, permissions=_permissions_of(role), system=state.role_records[name].is_built_in
        )

    # --- bindings ---

    async def create_binding(self, raw: bytes, call: Call) -> bytes:
        definition = decode(pb.Binding, raw).binding
        principal = _principal(definition.principal_type, definition.principal_name)
        scope = _scope(definition.scope, definition.resource_name)
        detail = (
            f"bind {', '.join(definition.role_names)} to {principal} in {scope or 'the cluster'}, as {definition.id}"
        )
        async with self._changing(call, detail):
            await self._security.bind(definition.id, principal, list(definition.role_names), scope)
        return _success()

    async def binding(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.BindingRequest, raw)
        grants = self._find(request.binding_id, _scope(request.scope, request.resource_name))
        return pb.Binding(binding=_binding(request.binding_id, grants)).SerializeToString()

    async def bindings(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.BindingRequest, raw)
        scope = _scope(request.scope, request.resource_name)
        return self._listing(lambda grant_scope: grant_scope == scope)

    async def all_bindings(self, raw: bytes, call: Call) -> bytes:
        return self._listing(lambda grant_scope: True)

    async def delete_binding(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.BindingRequest, raw)
        scope = _scope(request.scope, request.resource_name)
        self._find(request.binding_id, scope)
        async with self._changing(call, f"delete binding {request.binding_id} in {scope or 'the cluster'}"):
            await self._security.unbind(request.binding_id, scope)
        return _success()

    def _find(self, binding: str, scope: str) -> list[Grant]:
        """The grants of a binding that are in force. Fails with NOT_FOUND."""
        grants = [grant for grant in bound_grants(self._security.state, binding, scope) if not grant.is_parked]
        if not grants:
            raise CallFailed("NOT_FOUND", errors.UnknownAccount(f"there is no binding {binding[:100]!r} in this scope"))
        return grants

    def _listing(self, is_listed: Callable[[str], bool]) -> bytes:
        state = self._security.state
        bindings: dict[tuple[str, str], list[Grant]] = {}
        for grant_id, record in sorted(state.grant_records.items()):
            if record.role and not record.is_parked and is_listed(record.scope):
                bindings.setdefault((record.binding or grant_id, record.scope), []).append(state.grants[grant_id])
        entries = [_binding(binding, grants) for (binding, _), grants in sorted(bindings.items())]
        return pb.BindingListResponse(bindings=entries).SerializeToString()


def _rule(permission: str) -> RuleRecord:
    """Raises InvalidInput for a permission that is unknown or that nothing here needs."""
    if (rule := PERMISSIONS.get(permission)) is None:
        raise errors.InvalidInput(
            f"permission {permission[:100]!r} does not exist here", hint=f"permissions: {', '.join(PERMISSIONS)}"
        )
    return rule


def _permissions_of(role: AccessRole) -> list[str]:
    """The permissions that the rules of a role include."""
    return [name for name, record in PERMISSIONS.items() if _includes(role, record)]


def _includes(role: AccessRole, record: RuleRecord) -> bool:
    permission = record.parse()
    return any(
        rule.is_administration or (rule.pattern == permission.pattern and rule.actions >= permission.actions)
        for rule in role.rules
    )


def _principal(principal_type: str, name: str) -> Principal:
    """Raises InvalidInput."""
    if not principal_type or not name:
        raise errors.InvalidInput("a binding names a principal", hint="principal_type and principal_name are required")
    if principal_type in PRINCIPAL_TYPES:
        return Principal.parse(f"{PrincipalKind.DANUBE.value}:{principal_type}:{name}")
    if (principal_type, name) == _principal_of(ANONYMOUS):
        return ANONYMOUS
    if ":" not in principal_type:
        raise errors.InvalidInput(
            f"principal type {principal_type[:100]!r} does not exist",
            hint=f"{', '.join(sorted(PRINCIPAL_TYPES))}, or kind and issuer of another principal, such as user:local",
        )
    return Principal.parse(f"{principal_type}:{name}")


def _principal_of(principal: Principal) -> tuple[str, str]:
    """The type and the name of a principal."""
    if principal == ANONYMOUS:
        return str(principal), str(principal)
    is_danube = principal.kind is PrincipalKind.DANUBE
    return principal.issuer if is_danube else f"{principal.kind.value}:{principal.issuer}", principal.name


def _scope(scope: str, name: str) -> str:
    """The scope of the grants of a binding; empty for the cluster. Raises InvalidInput."""
    match scope:
        case "cluster":
            return ""
        case "namespace":
            return canonical_scope(str(namespace_resource(check_namespace(name.removeprefix("/")))))
        case "topic" if name.startswith("/"):
            return canonical_scope(str(topic_resource(base_name(name))))
        case "topic":
            return canonical_scope(str(schema_resource(name)))
    raise errors.InvalidInput(f"scope {scope[:100]!r} does not exist", hint="cluster, namespace or topic")


def _scope_of(scope: Pattern | None) -> tuple[str, str]:
    """Danube's scope and resource name."""
    if scope is None:
        return "cluster", ""
    if scope.kind is ResourceKind.NAMESPACE:
        return "namespace", "/".join(scope.segments)
    return "topic", scope.segments[0] if scope.kind is ResourceKind.SCHEMA else f"/{'/'.join(scope.segments)}"


def _binding(binding: str, grants: Sequence[Grant]) -> pb.BindingDefinition:
    principal_type, principal_name = _principal_of(grants[0].principal)
    scope, resource_name = _scope_of(grants[0].scope)
    return pb.BindingDefinition(
        id=binding,
        principal_type=principal_type,
        principal_name=principal_name,
        role_names=sorted(grant.role for grant in grants),
        scope=scope,
        resource_name=resource_name,
    )


def _success() -> bytes:
    return pb.Done(success=True).SerializeToString()
