"""Administration of security: the implementations of admin_api/security_api.py.

Every call asks for its right first. A change is recorded in the audit before it is made, and in force on this node when
it is answered; the answer names the nodes of the cluster that have not applied it yet (hazard 113).

    any client of the local socket  security_init, while security is off; security_whoami; security_login
    the owner of the data directory, on the local socket      security_recover
    the account itself              its tokens: list and revoke; explain about itself
    administrators                  everything else
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from icestream import errors, limits
from icestream.admin_api import security_api as api
from icestream.admin_api.admin_call import Listing, NoArguments, PageRequest
from icestream.cluster.node_info import NodeInfo
from icestream.frontends.native.public_calls import Call, Caller
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.implementation import implements, native_calls
from icestream.internal_api.paging import page_of
from icestream.runtime.clock import Clock
from icestream.security import security_records as records
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import Grant, explain, is_administrator
from icestream.security.action import Action, parse_action
from icestream.security.change_audit import ChangeAudit
from icestream.security.credential import PasswordCredential
from icestream.security.key_ring_changes import KeyRingChanges
from icestream.security.password_hashing import PasswordHashing
from icestream.security.principal import LOCAL, CallerIdentity, Principal, PrincipalKind, local_user
from icestream.security.resource import CLUSTER, Pattern, Resource, ResourceKind
from icestream.security.role_secrets import RoleSecrets
from icestream.security.security_changes import find_account, local_principal, tokens_of
from icestream.security.security_state import SecurityState
from icestream.security.security_store import SecurityStore, security_is_off
from icestream.security.service_tokens import ServiceTokens

_PEER_CREDENTIALS: Final = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


class SecurityCalls:
    def __init__(
        self,
        security: SecurityStore,
        access_control: AccessControl,
        clock: Clock,
        data_dir: Path,
        passwords: PasswordHashing,
        tokens: ServiceTokens,
        key_rings: KeyRingChanges,
        audit: ChangeAudit,
        role_secrets: RoleSecrets,
        cluster: ClusterCalls | None = None,
        login_seconds: int = limits.LOGIN_TOKEN_SECONDS_DEFAULT,
        check_settings: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_settings` raises ConfigurationError for settings of this node that cannot be used beside accounts."""
        self._security = security
        self._access_control = access_control
        self._clock = clock
        self._data_dir = data_dir
        self._passwords = passwords
        self._tokens = tokens
        self._key_rings = key_rings
        self._audit = audit
        self._role_secrets = role_secrets
        self._check_settings = check_settings
        self._cluster = cluster or ClusterCalls(None, clock)
        self._login_seconds = login_seconds

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    @property
    def _state(self) -> SecurityState:
        return self._security.state

    # --- the switch ---

    @implements(api.INIT_SECURITY)
    async def init_security(self, caller: Caller, request: api.NamedPassword) -> api.SecurityInitialised:
        """Raises AlreadyExists; ConfigurationError for settings that cannot be used beside accounts; NotReady while a
        node of the cluster does not answer; InvalidInput while a Raft port is open to processes without a certificate
        of a node, which could change accounts (hazard 105)."""
        if self._state.is_enabled:
            raise errors.AlreadyExists(
                "security is already on", hint="log in as an administrator: icestream security login NAME"
            )
        self._check_settings()  # else the node would not start again
        principal = local_user(request.name)
        members = await self._cluster.member_infos()
        _check_members(members)
        password_hash = await self._passwords.hash(request.password)
        async with self._audit.change(caller.session, Action.ADMIN, CLUSTER, f"security on, administrator {principal}"):
            key_ring = await asyncio.to_thread(self._key_rings.new_ring)
            revision = await self._security.init(request.name, password_hash, key_ring)
        return api.SecurityInitialised(
            revision=revision,
            pending_nodes=await self._pending_nodes(revision),
            principal=str(principal),
            is_clustered=len(members) > 1,
        )

    @implements(api.RECOVER_SECURITY)
    async def recover_security(self, caller: Caller, request: api.NamedPassword) -> api.SecurityChange:
        """Raises PermissionDenied unless the caller owns the data directory and is on this machine."""
        self._require_enabled()
        is_process = caller.session.identity.principal.is_internal
        if is_process or _peer_uid(caller) != self._data_dir.stat().st_uid:
            raise errors.PermissionDenied(
                "only the owner of the data directory recovers security, by the local socket",
                hint="run it on the broker's machine, as the broker's account",
            )
        principal = local_user(request.name)
        password_hash = await self._passwords.hash(request.password)
        async with self._audit.change(caller.session, Action.ADMIN, CLUSTER, f"recovery of administrator {principal}"):
            revision = await self._security.recover(request.name, password_hash)
            if not self._key_rings.is_readable(self._state.wrapped_keys):
                # The wrapping key is lost: with new keys logins work again, and every older token has ended.
                key_ring = await asyncio.to_thread(self._key_rings.new_ring)
                revision = await self._security.change_keys(lambda _: key_ring)
        return await self._answer(revision)

    def _require_enabled(self) -> None:
        if not self._state.is_enabled:
            raise security_is_off()

    def _require_administrator(self, caller: Caller) -> None:
        self._require_enabled()
        caller.session.require(Action.ADMIN, CLUSTER)

    def _require_self_or_administrator(self, caller: Caller, principal: Principal) -> None:
        """An account may see and end its own credentials."""
        self._require_enabled()
        if caller.session.closed is not None or caller.session.identity.principal != principal:
            caller.session.require(Action.ADMIN, CLUSTER)

    def _changing(self, caller: Caller, detail: str) -> AbstractAsyncContextManager[None]:
        return self._audit.change(caller.session, Action.ADMIN, CLUSTER, detail)

    async def _answer(self, revision: int) -> api.SecurityChange:
        return api.SecurityChange(revision=revision, pending_nodes=await self._pending_nodes(revision))

    async def _pending_nodes(self, revision: int) -> list[str]:
        """The nodes that have not applied a change, after ACCESS_PENDING_SECONDS at the latest."""
        deadline_ns = self._clock.monotonic_ns() + int(limits.ACCESS_PENDING_SECONDS * 1e9)
        while True:
            infos = await self._cluster.member_infos()
            pending = [name for name, info in infos.items() if info is None or info.revision < revision]
            if not pending or self._clock.monotonic_ns() >= deadline_ns:
                return pending
            await self._clock.sleep(limits.METADATA_TICK_SECONDS)

    # --- the caller itself ---

    @implements(api.WHOAMI)
    async def whoami(self, caller: Caller, _request: NoArguments) -> api.CallerDetails:
        identity = caller.session.identity
        policy = self._access_control.policy
        grants = policy.grants.get(identity.principal, ())
        return api.CallerDetails(
            is_enabled=policy.is_enabled,
            principal=str(identity.principal),
            roles=list(identity.roles),
            grants=[_grant_summary(grant) for grant in grants if not grant.is_parked],
            is_administrator=is_administrator(identity, policy),
            token_id=identity.credential_id,
            expires_ms=None if identity.expires_us is None else identity.expires_us // 1000,
        )

    @implements(api.LOGIN)
    async def login(self, caller: Caller, request: api.LoginRequest) -> api.IssuedToken:
        """A token of a user, for its password. Raises Unauthenticated; Refused where too many logins wait."""
        self._require_enabled()
        credential = PasswordCredential(request.name, request.password)
        session = await self._access_control.authenticate(credential, caller.session.address, caller.session.listener)
        self._access_control.close_session(session)
        ttl_seconds = self._login_seconds if request.ttl_seconds is None else request.ttl_seconds
        if not 1 <= ttl_seconds <= self._login_seconds:
            raise errors.InvalidInput(
                f"a login cannot be valid for {ttl_seconds} s",
                hint=f"1 to {self._login_seconds} s; `icestream security tokens create` issues longer ones",
            )
        return await self._issue(session.identity.principal, ttl_seconds, "login")

    # --- accounts ---

    @implements(api.PAGE_ACCOUNTS)
    async def page_accounts(self, caller: Caller, request: PageRequest) -> Listing[api.AccountDetails]:
        self._require_administrator(caller)
        state = self._state
        principals = [
            *(local_principal(PrincipalKind.USER, name) for name in state.users),
            *(local_principal(PrincipalKind.SERVICE, name) for name in state.services),
        ]
        return page_of(((str(principal), principal) for principal in principals), request, self._account_details)

    def _account_details(self, principal: Principal) -> api.AccountDetails:
        state = self._state
        account = find_account(state, principal)
        return api.AccountDetails(
            principal=str(principal),
            kind=principal.kind.value,
            name=principal.name,
            is_disabled=account.is_disabled,
            created_ms=account.created_ms,
            grants=sum(not grant.is_parked for grant in state.grants_of(principal)),
            tokens=len(tokens_of(state, principal)),
        )

    @implements(api.CREATE_ACCOUNT)
    async def create_account(self, caller: Caller, request: api.NewAccount) -> api.AccountDetails:
        self._require_administrator(caller)
        kinds = {kind.value: kind for kind in (PrincipalKind.USER, PrincipalKind.SERVICE)}
        kind = kinds.get(request.kind)
        if kind is None:
            raise errors.InvalidInput(f"{request.kind[:100]!r} is not a kind of account", hint="user or service")
        principal = local_principal(kind, request.name)
        if (kind is PrincipalKind.USER) != bool(request.password):
            raise errors.InvalidInput(
                "a user has a password, a service account has none", hint="a service account gets tokens instead"
            )
        if kind is PrincipalKind.USER:
            password_hash = await self._passwords.hash(request.password)
            async with self._changing(caller, f"create {principal}"):
                await self._security.create_user(request.name, password_hash)
        else:
            async with self._changing(caller, f"create {principal}"):
                await self._security.create_service(request.name)
        return self._account_details(principal)

    @implements(api.CHANGE_ACCOUNT)
    async def change_account(self, caller: Caller, request: api.ChangeAccount) -> api.SecurityChange:
        self._require_administrator(caller)
        principal = Principal.parse(request.principal)
        find_account(self._state, principal)
        revision = self._access_control.policy.revision
        if request.password is not None:
            if principal.kind is not PrincipalKind.USER:
                raise errors.InvalidInput(f"{principal} has no password", hint="issue a token for it")
            password_hash = await self._passwords.hash(request.password)
            async with self._changing(caller, f"set the password of {principal}"):
                revision = await self._security.set_password(principal.name, password_hash)
        if request.is_disabled is not None:
            async with self._changing(caller, f"{'disable' if request.is_disabled else 'enable'} {principal}"):
                revision = await self._security.set_disabled(principal, is_disabled=request.is_disabled)
        return await self._answer(revision)

    @implements(api.DELETE_ACCOUNT)
    async def delete_account(self, caller: Caller, request: api.PrincipalOnly) -> api.SecurityChange:
        self._require_administrator(caller)
        principal = Principal.parse(request.principal)
        async with self._changing(caller, f"delete {principal}"):
            revision = await self._security.delete_account(principal)
        return await self._answer(revision)

    # --- tokens ---

    @implements(api.PAGE_TOKENS)
    async def page_tokens(self, caller: Caller, request: api.PageTokens) -> Listing[api.TokenDetails]:
        if request.principal:
            principal = Principal.parse(request.principal)
            self._require_self_or_administrator(caller, principal)
            token_ids = tokens_of(self._state, principal)
        else:
            self._require_administrator(caller)
            token_ids = list(self._state.tokens)
        tokens = self._state.tokens
        return page_of(((token_id, token_id) for token_id in token_ids), request, _token_details(tokens))

    @implements(api.CREATE_TOKEN)
    async def create_token(self, caller: Caller, request: api.NewToken) -> api.IssuedToken:
        self._require_administrator(caller)
        if not 1 <= request.ttl_seconds <= limits.SECURITY_TOKEN_SECONDS_MAX:
            raise errors.InvalidInput(
                f"a token cannot be valid for {request.ttl_seconds} s",
                hint=f"1 to {limits.SECURITY_TOKEN_SECONDS_MAX} s",
            )
        principal = Principal.parse(request.principal)
        async with self._changing(caller, f"issue a token for {principal}"):
            return await self._issue(principal, request.ttl_seconds, request.note)

    async def _issue(self, principal: Principal, ttl_seconds: int, note: str) -> api.IssuedToken:
        """Signs a token and records its id first, so that every token that was handed out can be revoked."""
        account = find_account(self._state, principal)
        minted = self._tokens.mint(principal, account.generation, (), ttl_seconds)
        await self._security.record_token(minted.token_id, principal, minted.expires_us, note)
        return api.IssuedToken(
            token=minted.token,
            token_id=minted.token_id,
            principal=str(principal),
            expires_ms=minted.expires_us // 1000,
        )

    @implements(api.REVOKE_TOKEN)
    async def revoke_token(self, caller: Caller, request: api.TokenOnly) -> api.SecurityChange:
        self._require_enabled()
        record = self._state.tokens.get(request.token_id)
        if record is None:
            self._require_administrator(caller)  # others are not told which ids exist
        else:
            self._require_self_or_administrator(caller, Principal.parse(record.principal))
        # An unknown id is not quoted: it may be a token itself.
        text = "a token" if record is None else f"token {request.token_id} of {record.principal}"
        async with self._changing(caller, f"revoke {text}"):
            revision = await self._security.revoke_token(request.token_id)
        return await self._answer(revision)

    @implements(api.REVOKE_ALL_TOKENS)
    async def revoke_all_tokens(self, caller: Caller, request: api.PrincipalOnly) -> api.SecurityChange:
        principal = Principal.parse(request.principal)
        self._require_self_or_administrator(caller, principal)
        async with self._changing(caller, f"revoke all tokens of {principal}"):
            revision = await self._security.revoke_all_tokens(principal)
        return await self._answer(revision)

    @implements(api.ROTATE_KEYS)
    async def rotate_keys(self, caller: Caller, _request: NoArguments) -> api.KeyRingChange:
        self._require_administrator(caller)
        async with self._changing(caller, "rotate the signing keys"):
            revision = await self._security.change_keys(self._key_rings.rotated)
        return await self._key_ring_change(revision)

    @implements(api.LIST_KEYS)
    async def list_keys(self, caller: Caller, _request: NoArguments) -> api.SigningKeys:
        self._require_administrator(caller)
        keys = self._key_rings.keys(self._state.wrapped_keys)
        return api.SigningKeys(
            keys=[
                api.SigningKeyDetails(key_id=key.key_id, created_ms=key.created_us // 1000, is_signing=key is keys[0])
                for key in keys
            ]
        )

    @implements(api.REMOVE_KEY)
    async def remove_key(self, caller: Caller, request: api.KeyOnly) -> api.KeyRingChange:
        """Ends every token that the key signed, also that of the caller, at the latest when the answer was sent."""
        self._require_administrator(caller)
        async with self._changing(caller, f"remove signing key {request.key_id[: limits.NAME_BYTES_MAX]}"):
            revision = await self._security.change_keys(lambda ring: self._key_rings.without(ring, request.key_id))
        return await self._key_ring_change(revision)

    async def _key_ring_change(self, revision: int) -> api.KeyRingChange:
        key_ids = [key.key_id for key in self._key_rings.keys(self._state.wrapped_keys)]
        return api.KeyRingChange(revision=revision, pending_nodes=await self._pending_nodes(revision), key_ids=key_ids)

    # --- processes that an operator runs ---

    @implements(api.CREATE_PROCESS_SECRET)
    async def create_process_secret(self, caller: Caller, request: api.ProcessRole) -> api.ProcessSecretFile:
        """While security is off too, so that such a process stays connected when it is switched on."""
        caller.session.require(Action.ADMIN, CLUSTER)
        return await self._change_process_secret(caller, request.role, "make", self._role_secrets.create_file)

    @implements(api.DELETE_PROCESS_SECRET)
    async def delete_process_secret(self, caller: Caller, request: api.ProcessRole) -> api.ProcessSecretFile:
        caller.session.require(Action.ADMIN, CLUSTER)
        return await self._change_process_secret(caller, request.role, "delete", self._role_secrets.delete_file)

    async def _change_process_secret(
        self, caller: Caller, role: str, verb: str, change: Callable[[str], Path]
    ) -> api.ProcessSecretFile:
        """Ends the sessions of the role too: the older secret is invalid. A child of the broker connects again."""
        async with self._changing(caller, f"{verb} the secret of the process {role[:100]}"):
            path = await asyncio.to_thread(change, role)
        reason = errors.Unauthenticated(f"the secret of the process {role} has changed", hint="connect again")
        principal = Principal(PrincipalKind.PROCESS, LOCAL, role)
        self._access_control.end_sessions(lambda identity: identity.principal == principal, reason)
        return api.ProcessSecretFile(role=role, file=str(path))

    # --- roles ---

    @implements(api.PAGE_ROLES)
    async def page_roles(self, caller: Caller, request: PageRequest) -> Listing[api.RoleDetails]:
        self._require_administrator(caller)
        return page_of(((name, name) for name in self._state.role_records), request, self._role_details)

    def _role_details(self, name: str) -> api.RoleDetails:
        record = self._state.role_records[name]
        rules = [api.RoleRule(rule.actions, rule.resource) for rule in record.rules]
        return api.RoleDetails(role=name, rules=rules, is_built_in=record.is_built_in)

    @implements(api.PUT_ROLE)
    async def put_role(self, caller: Caller, request: api.PutRole) -> api.RoleDetails:
        self._require_administrator(caller)
        rules = [records.RuleRecord(rule.actions, rule.resource) for rule in request.rules]
        async with self._changing(caller, f"set the rules of role {request.role[: limits.NAME_BYTES_MAX]}"):
            await self._security.put_role(request.role, rules)
        return self._role_details(request.role)

    @implements(api.DELETE_ROLE)
    async def delete_role(self, caller: Caller, request: api.RoleOnly) -> api.SecurityChange:
        self._require_administrator(caller)
        async with self._changing(caller, f"delete role {request.role[: limits.NAME_BYTES_MAX]}"):
            revision = await self._security.delete_role(request.role)
        return await self._answer(revision)

    # --- grants ---

    @implements(api.PAGE_GRANTS)
    async def page_grants(self, caller: Caller, request: api.PageGrants) -> Listing[api.GrantDetails]:
        if request.principal:
            principal = Principal.parse(request.principal)
            self._require_self_or_administrator(caller, principal)
            grant_ids = [grant.grant_id for grant in self._state.grants_of(principal)]
        else:
            self._require_administrator(caller)
            grant_ids = list(self._state.grants)
        return page_of(((grant_id, grant_id) for grant_id in grant_ids), request, self._grant_details)

    def _grant_details(self, grant_id: str) -> api.GrantDetails:
        record = self._state.grant_records[grant_id]
        return api.GrantDetails(
            grant_id=grant_id,
            principal=record.principal,
            role=record.role,
            actions=record.rule.actions if record.rule is not None else [],
            resource=record.rule.resource if record.rule is not None else "",
            scope=record.scope,
            binding=record.binding,
            is_parked=record.is_parked,
            created_ms=record.created_ms,
        )

    @implements(api.CREATE_GRANT)
    async def create_grant(self, caller: Caller, request: api.NewGrant) -> api.GrantDetails:
        self._require_administrator(caller)
        principal = Principal.parse(request.principal)
        has_rule = bool(request.actions or request.resource)
        rule = records.RuleRecord(request.actions, request.resource) if has_rule else None
        grant = rule.parse() if rule is not None else None
        place = f" in {records.parse_scope(request.scope)}" if request.scope else ""
        async with self._changing(caller, f"grant {grant or f'role {request.role[:100]}'} to {principal}{place}"):
            grant_id = await self._security.grant(principal, request.role, rule, request.scope)
        return self._grant_details(grant_id)

    @implements(api.DELETE_GRANT)
    async def delete_grant(self, caller: Caller, request: api.GrantOnly) -> api.SecurityChange:
        self._require_administrator(caller)
        async with self._changing(caller, f"delete {self._grant_text(request.grant_id)}"):
            revision = await self._security.delete_grant(request.grant_id)
        return await self._answer(revision)

    @implements(api.UNPARK_GRANT)
    async def unpark_grant(self, caller: Caller, request: api.GrantOnly) -> api.SecurityChange:
        self._require_administrator(caller)
        async with self._changing(caller, f"unpark {self._grant_text(request.grant_id)}"):
            revision = await self._security.unpark(request.grant_id)
        return await self._answer(revision)

    def _grant_text(self, grant_id: str) -> str:
        grant = self._state.grants.get(grant_id)
        return str(grant) if grant is not None else f"grant {grant_id[: limits.NAME_BYTES_MAX]}"

    # --- decisions ---

    @implements(api.EXPLAIN_ACCESS)
    async def explain_access(self, caller: Caller, request: api.AccessQuestion) -> api.AccessExplanation:
        """Explains a decision; while security is off, that is the reason. Not recorded: no access was attempted."""
        principal = Principal.parse(request.principal)
        if self._state.is_enabled:
            self._require_self_or_administrator(caller, principal)
        identity = CallerIdentity(principal, request.claims, tuple(request.roles))
        action, resource = parse_action(request.action), _resource(request.resource)
        decision, considered = explain(identity, action, resource, self._access_control.policy)
        reason = decision.reason
        account = self._state.account(principal)
        if resource.kind is ResourceKind.MQTT and not decision.is_allowed:
            reason = f"{reason}; {action.value} on the topic that stores these messages would allow it too"
        if decision.is_allowed and account is not None and account.is_disabled:
            reason = f"{reason}; but {principal} is disabled and cannot log in"
        return api.AccessExplanation(
            principal=str(principal),
            action=action.value,
            resource=str(resource),
            is_allowed=decision.is_allowed,
            reason=reason,
            rules=[
                api.ExplainedRule(source=each.source, rule=str(each.rule), allows=each.allows) for each in considered
            ],
        )


def _grant_summary(grant: Grant) -> str:
    text = grant.role or str(grant.rule)
    return text if grant.scope is None else f"{text} in {grant.scope}"


def _token_details(tokens: dict[str, records.TokenRecord]) -> Callable[[str], api.TokenDetails]:
    def describe(token_id: str) -> api.TokenDetails:
        record = tokens[token_id]
        return api.TokenDetails(
            token_id=token_id,
            principal=record.principal,
            note=record.note,
            created_ms=record.created_ms,
            expires_ms=record.expires_ms,
        )

    return describe


def _resource(text: str) -> Resource:
    """A resource as people write it: `/shop/orders` is a topic. Raises InvalidInput."""
    if text.startswith("/"):
        pattern = Pattern.parse(text)
        return Resource(pattern.kind, pattern.segments)
    return Resource.parse(text)


def _peer_uid(caller: Caller) -> int | None:
    """The account of the process at the other end of a local socket; None for any other connection."""
    with contextlib.suppress(OSError, AttributeError):
        connection = caller.connection.socket
        if connection is not None and connection.family == socket.AF_UNIX:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
            return int(_PEER_CREDENTIALS.unpack(raw)[1])
    return None


def _check_members(members: Mapping[str, NodeInfo | None]) -> None:
    """Raises NotReady for a node that does not answer, InvalidInput for one that is too old or not certified.

    Each condition is checked for all nodes before the next one, so that the error does not depend on node ids.
    """
    for name, info in members.items():
        if info is None:
            raise errors.NotReady(
                f"node {name} does not answer: it would not learn that security is on",
                hint="start it, or remove it from the cluster, and try again",
            )
    infos = {name: info for name, info in members.items() if info is not None}
    for name, info in infos.items():
        if info.security < records.VERSION:
            raise errors.InvalidInput(
                f"node {name} runs a version without security", hint="upgrade every node of the cluster first"
            )
    for name, info in infos.items():
        if not info.is_certified:
            raise errors.InvalidInput(
                f"the Raft port of node {name} does not ask for certificates of nodes: every process that reaches "
                "it could change accounts",
                hint="restart every node with meta_store.tls_certificate, tls_key, tls_authority and tls_cluster; "
                "`icestream cluster certificates DIRECTORY --cluster CLUSTER --name NODE` makes such files for "
                "development",
            )
