"""Plans changes of the security records: from the present state to the operations of one transaction. Pure.

Each function returns the operations, and raises AlreadyExists, UnknownAccount, NotEmpty, InvalidInput or MetadataFull
if the change is not possible in this state. The caller (security_store.py) applies them together with the next
`/security/changes`, if nothing else has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.metadata.command import Delete, Operation, Put, PutWithTtl
from icestream.observability.words import counted
from icestream.security import security_records as records
from icestream.security.access_policy import AccessRule, Grant, may_administer
from icestream.security.action import Action
from icestream.security.principal import (
    LOCAL,
    Principal,
    PrincipalKind,
    check_principal_name,
    local_user,
    service_account,
)
from icestream.security.security_state import SecurityState

Operations = list[Operation]

ADMINISTRATOR: Final = "administrator"
_EVERYWHERE: Final = ("/*/*", "namespace:/**", "schema:/*", "table:/**")
_DESCRIBE: Final = [records.RuleRecord(["describe"], resource) for resource in _EVERYWHERE]
BUILT_IN_ROLES: Final[Mapping[str, records.RoleRecord]] = {
    ADMINISTRATOR: records.RoleRecord([records.RuleRecord(["admin"], "cluster")], is_built_in=True),
    "reader": records.RoleRecord(
        [records.RuleRecord(["read"], "/*/*"), records.RuleRecord(["read"], "table:/**"), *_DESCRIBE], is_built_in=True
    ),
    "writer": records.RoleRecord([records.RuleRecord(["write"], "/*/*"), *_DESCRIBE], is_built_in=True),
    "monitor": records.RoleRecord([records.RuleRecord(["describe"], "cluster"), *_DESCRIBE], is_built_in=True),
}


# --- the switch -------------------------------------------------------------------------------------------------------


def plan_init(name: str, password_hash: str, key_ring: bytes, grant_id: str, now_ms: int) -> Operations:
    """Everything that switches security on: the first administrator, the keys, the built-in roles, the switch."""
    principal = local_user(name)
    return [
        Put(records.ENABLED, records.encode(records.SwitchRecord(now_ms))),
        Put(records.KEY_RING, key_ring),
        *(Put(records.role_key(role), records.encode(record)) for role, record in BUILT_IN_ROLES.items()),
        Put(records.user_key(name), records.encode(records.AccountRecord(1, now_ms, password_hash))),
        Put(
            records.grant_key(grant_id, None),
            records.encode(records.GrantRecord(str(principal), now_ms, ADMINISTRATOR)),
        ),
    ]


def plan_recovery(state: SecurityState, name: str, password_hash: str, grant_id: str, now_ms: int) -> Operations:
    """Makes a user an administrator with this password, whatever it was before; its tokens are revoked."""
    principal = local_user(name)
    former = state.users.get(name)
    created_ms = now_ms if former is None else former.created_ms
    account = records.AccountRecord(state.serial + 1, created_ms, password_hash)
    operations: Operations = [
        Put(records.role_key(ADMINISTRATOR), records.encode(BUILT_IN_ROLES[ADMINISTRATOR])),
        Put(records.user_key(name), records.encode(account)),
    ]
    has_role = any(grant.role == ADMINISTRATOR and grant.scope is None for grant in state.grants_of(principal))
    if not has_role:
        grant = records.GrantRecord(str(principal), now_ms, ADMINISTRATOR)
        operations.append(Put(records.grant_key(grant_id, None), records.encode(grant)))
    return operations


# --- accounts ---------------------------------------------------------------------------------------------------------


def plan_user(state: SecurityState, name: str, password_hash: str, now_ms: int) -> Operations:
    """Creates a password user."""
    _check_new_account(state, local_user(name), state.users)
    return [Put(records.user_key(name), records.encode(records.AccountRecord(state.serial + 1, now_ms, password_hash)))]


def plan_service(state: SecurityState, name: str, now_ms: int) -> Operations:
    """Creates a service account."""
    _check_new_account(state, service_account(name), state.services)
    return [Put(records.service_key(name), records.encode(records.AccountRecord(state.serial + 1, now_ms)))]


def _check_new_account(state: SecurityState, principal: Principal, accounts: Collection[str]) -> None:
    if principal.name in accounts:
        raise errors.AlreadyExists(f"{principal} already exists", hint="choose another name, or change this account")
    if len(state.users) + len(state.services) >= limits.SECURITY_ACCOUNTS_MAX:
        raise _full("accounts", limits.SECURITY_ACCOUNTS_MAX)


def plan_password(state: SecurityState, name: str, password_hash: str) -> Operations:
    """Sets the password of a user; its tokens and sessions end."""
    account = find_account(state, local_user(name))
    changed = msgspec.structs.replace(account, password_hash=password_hash, generation=state.serial + 1)
    return [Put(records.user_key(name), records.encode(changed))]


def plan_disabling(state: SecurityState, principal: Principal, *, is_disabled: bool) -> Operations:
    """Disables or enables an account. A disabled one keeps its grants; its tokens and sessions end for good."""
    account = find_account(state, principal)
    if is_disabled:
        _check_administrator_left(state, without=[principal])
    changed = msgspec.structs.replace(account, is_disabled=is_disabled, generation=state.serial + 1)
    return [Put(account_key(principal), records.encode(changed))]


def plan_account_deletion(state: SecurityState, principal: Principal) -> Operations:
    """Deletes an account with its grants: an account of the same name that is created later has none of them."""
    find_account(state, principal)
    _check_administrator_left(state, without=[principal])
    return [
        Delete(account_key(principal)),
        *(Delete(state.grant_keys[grant.grant_id]) for grant in state.grants_of(principal)),
        *(Delete(records.token_key(token_id)) for token_id in tokens_of(state, principal)),
    ]


def find_account(state: SecurityState, principal: Principal) -> records.AccountRecord:
    """The record of a local account. Raises UnknownAccount."""
    account = state.account(principal)
    if account is None:
        raise errors.UnknownAccount(
            f"there is no account {principal}", hint="`icestream security users list` shows the accounts"
        )
    return account


def account_key(principal: Principal) -> str:
    """The key of a local account."""
    make_key = records.user_key if principal.kind is PrincipalKind.USER else records.service_key
    return make_key(principal.name)


# --- roles ------------------------------------------------------------------------------------------------------------


def plan_role(state: SecurityState, name: str, rules: Sequence[records.RuleRecord]) -> Operations:
    """Creates a role or replaces its rules."""
    check_principal_name(name)
    former = state.role_records.get(name)
    if former is not None and former.is_built_in:
        raise errors.InvalidInput(f"role {name} is built in", hint="create a role of another name")
    if not 0 < len(rules) <= limits.SECURITY_ROLE_RULES_MAX:
        raise errors.InvalidInput(
            f"a role of {counted(len(rules), 'rule')}", hint=f"1 to {limits.SECURITY_ROLE_RULES_MAX} are possible"
        )
    if former is None and len(state.role_records) >= limits.SECURITY_ROLES_MAX:
        raise _full("roles", limits.SECURITY_ROLES_MAX)
    record = records.RoleRecord(list(rules))
    role = record.parse(name)  # raises InvalidInput
    if former is not None and not any(rule.is_administration for rule in role.rules):
        _check_administrator_left(state, without_grants=_grants_of_role(state, name))
    return [Put(records.role_key(name), records.encode(record))]


def plan_role_deletion(state: SecurityState, name: str) -> Operations:
    """Deletes a role without grants."""
    record = state.role_records.get(name)
    if record is None:
        raise unknown_role(state, name)
    if record.is_built_in:
        raise errors.InvalidInput(f"role {name} is built in", hint="delete the grants of it instead")
    grants = _grants_of_role(state, name)
    if grants:
        # A role of the same name that is created later would revive them.
        raise errors.NotEmpty(
            f"role {name} is granted {counted(len(grants), 'time')}", hint=f"delete the grants first: {grants[0]}, …"
        )
    return [Delete(records.role_key(name))]


def unknown_role(state: SecurityState, name: str) -> errors.UnknownAccount:
    return errors.UnknownAccount(
        f"there is no role {name[:100]!r}", hint=f"roles: {', '.join(sorted(state.role_records)[:20])}"
    )


def _grants_of_role(state: SecurityState, name: str) -> list[str]:
    return [grant.grant_id for grant in state.grants.values() if grant.role == name]


# --- grants -----------------------------------------------------------------------------------------------------------


def plan_grant(
    state: SecurityState,
    grant_id: str,
    principal: Principal,
    role: str,
    rule: records.RuleRecord | None,
    now_ms: int,
    scope: str = "",
    binding: str = "",
) -> Operations:
    """Grants a role, everywhere or in a scope, or a single rule. `binding`: see `plan_binding`."""
    if principal.is_internal:
        raise errors.InvalidInput(f"{principal} is a process of a node", hint="what it may do cannot be granted")
    if principal.kind in (PrincipalKind.USER, PrincipalKind.SERVICE):
        find_account(state, principal)
    if bool(role) == (rule is not None):
        raise errors.InvalidInput("a grant names a role, or actions and a resource", hint="name exactly one of them")
    if role and role not in state.roles:
        raise unknown_role(state, role)
    scope = records.canonical_scope(scope)
    record = records.GrantRecord(str(principal), now_ms, role, rule, scope=scope, binding=binding)
    grant = record.parse(grant_id)  # raises InvalidInput
    _check_may_administer(state, grant)
    of_principal = state.grants_of(principal)
    same = [
        other
        for other in of_principal
        if (other.role, other.rule, other.scope, other.is_parked) == (grant.role, grant.rule, grant.scope, False)
        and state.grant_records[other.grant_id].binding == binding
    ]
    if same:
        raise errors.AlreadyExists(f"{principal} has this grant already", hint="`icestream security grants list`")
    key = records.grant_key(grant_id, rule, scope)
    if len(state.grants) >= limits.SECURITY_GRANTS_MAX:
        raise _full("grants", limits.SECURITY_GRANTS_MAX)
    if len(of_principal) >= limits.SECURITY_GRANTS_EACH_MAX:
        raise _full(f"grants of {principal}", limits.SECURITY_GRANTS_EACH_MAX)
    if key.startswith(records.TOPIC_GRANTS) and _count_siblings(state, key) >= limits.SECURITY_GRANTS_EACH_MAX:
        raise _full(f"grants for {grant.rule.pattern if grant.rule else grant.scope}", limits.SECURITY_GRANTS_EACH_MAX)
    return [Put(key, records.encode(record))]


def _check_may_administer(state: SecurityState, grant: Grant) -> None:
    role = state.roles.get(grant.role)
    rules: Sequence[AccessRule] = role.rules if role is not None else [grant.rule] if grant.rule is not None else []
    if (
        grant.scope is None
        and not may_administer(grant.principal)
        and any(Action.ADMIN in rule.actions for rule in rules)
    ):
        raise errors.InvalidInput(
            f"{grant.principal} cannot administer the cluster", hint="grant it to a user or a service account"
        )


def _count_siblings(state: SecurityState, key: str) -> int:
    """The number of grants for the same topic."""
    prefix = key.rpartition("/")[0] + "/"
    return sum(key.startswith(prefix) for key in state.grant_keys.values())


def plan_grant_deletion(state: SecurityState, grant_id: str) -> Operations:
    find_grant(state, grant_id)
    _check_administrator_left(state, without_grants=[grant_id])
    return [Delete(state.grant_keys[grant_id])]


def plan_unparking(state: SecurityState, grant_id: str) -> Operations:
    """Puts a grant in force again whose topic was deleted, for the topic of that name today."""
    record = find_grant(state, grant_id)
    if not record.is_parked:
        raise errors.InvalidInput(f"grant {grant_id} is in force", hint="only parked grants can be unparked")
    return [Put(state.grant_keys[grant_id], records.encode(msgspec.structs.replace(record, is_parked=False)))]


def plan_binding(
    state: SecurityState,
    binding: str,
    grant_ids: Sequence[str],
    principal: Principal,
    roles: Sequence[str],
    scope: str,
    now_ms: int,
) -> Operations:
    """Grants several roles under one id, in place of what the id had in this scope before.

    `grant_ids`: an unused one for each role.
    """
    if not binding.isprintable() or not 0 < len(binding.encode()) <= limits.NAME_BYTES_MAX:
        raise errors.InvalidInput(f"{binding[:100]!r} is not the id of a binding", hint="printable characters")
    if not 0 < len(roles) <= limits.SECURITY_BINDING_ROLES_MAX:
        raise errors.InvalidInput(
            f"a binding of {counted(len(roles), 'role')}",
            hint=f"1 to {limits.SECURITY_BINDING_ROLES_MAX} are possible",
        )
    former = bound_grants(state, binding, scope)
    kept_roles = {grant.role for grant in former if grant.principal == principal and grant.role in roles}
    removed = [grant.grant_id for grant in former if grant.role not in kept_roles]
    operations: Operations = [Delete(state.grant_keys[grant_id]) for grant_id in removed]
    if removed:
        _check_administrator_left(state, without_grants=removed)
    for grant_id, role in zip(grant_ids, dict.fromkeys(roles), strict=False):
        if role not in kept_roles:
            operations += plan_grant(state, grant_id, principal, role, None, now_ms, scope, binding)
    # A grant whose topic was deleted is in force again: an administrator has just said so.
    for grant in former:
        if grant.is_parked and grant.role in kept_roles:
            operations += plan_unparking(state, grant.grant_id)
    return operations


def plan_binding_deletion(state: SecurityState, binding: str, scope: str) -> Operations:
    """Deletes the grants of a binding. Raises UnknownAccount."""
    grants = bound_grants(state, binding, scope)
    if not grants:
        raise errors.UnknownAccount(
            f"there is no binding {binding[:100]!r} in this scope", hint="`icestream security grants list` shows grants"
        )
    grant_ids = [grant.grant_id for grant in grants]
    _check_administrator_left(state, without_grants=grant_ids)
    return [Delete(state.grant_keys[grant_id]) for grant_id in grant_ids]


def bound_grants(state: SecurityState, binding: str, scope: str) -> list[Grant]:
    """The grants of a binding, parked ones included. A grant of a role without a binding is one by its own id."""
    scope = records.canonical_scope(scope)
    return [
        state.grants[grant_id]
        for grant_id, record in state.grant_records.items()
        if record.scope == scope and record.role and binding == (record.binding or grant_id)
    ]


def find_grant(state: SecurityState, grant_id: str) -> records.GrantRecord:
    """The record of a grant. Raises UnknownAccount."""
    record = state.grant_records.get(grant_id)
    if record is None:
        raise errors.UnknownAccount(
            f"there is no grant {grant_id[:100]!r}", hint="`icestream security grants list` shows their ids"
        )
    return record


# --- tokens and keys --------------------------------------------------------------------------------------------------


def plan_token(
    state: SecurityState, token_id: str, principal: Principal, expires_ms: int, note: str, now_ms: int
) -> Operations:
    """Records an issued token until it expires, so that it can be listed and revoked."""
    account = find_account(state, principal)
    if account.is_disabled:
        raise errors.InvalidInput(f"{principal} is disabled", hint="enable it first")
    if len(note.encode()) > limits.SECURITY_NOTE_BYTES_MAX or not note.isprintable():
        raise errors.InvalidInput(
            "the note of a token is not printable, or too long", hint=f"{limits.SECURITY_NOTE_BYTES_MAX} bytes at most"
        )
    if len(state.tokens) >= limits.SECURITY_TOKENS_MAX:
        raise _full("tokens", limits.SECURITY_TOKENS_MAX)
    if len(tokens_of(state, principal)) >= limits.SECURITY_TOKENS_EACH_MAX:
        raise _full(f"tokens of {principal}", limits.SECURITY_TOKENS_EACH_MAX)
    record = records.TokenRecord(str(principal), account.generation, now_ms, expires_ms, note)
    return [PutWithTtl(records.token_key(token_id), records.encode(record), max(expires_ms - now_ms, 1))]


def plan_token_revocation(state: SecurityState, token_id: str, now_ms: int) -> Operations:
    """Revokes a token until it would have expired."""
    record = state.tokens.get(token_id)
    if record is None:
        raise errors.UnknownAccount(
            "there is no token of this id",  # not quoted: it may be a token itself
            hint="`icestream security tokens list` shows the ids; an expired token is not listed",
        )
    revoked = records.RevokedRecord(now_ms, record.expires_ms)
    # Longer than the token by the clock skew that verifiers accept, and by the time that stores let a key live on.
    ttl_ms = max(record.expires_ms - now_ms, 0) + limits.SECURITY_REVOKED_SPARE_MS
    return [
        Delete(records.token_key(token_id)),
        PutWithTtl(records.revoked_key(token_id), records.encode(revoked), ttl_ms),
    ]


def plan_all_tokens_revocation(state: SecurityState, principal: Principal) -> Operations:
    """Raises the generation of an account: all its tokens and sessions end."""
    account = find_account(state, principal)
    changed = msgspec.structs.replace(account, generation=state.serial + 1)
    return [
        Put(account_key(principal), records.encode(changed)),
        *(Delete(records.token_key(token_id)) for token_id in tokens_of(state, principal)),
    ]


def tokens_of(state: SecurityState, principal: Principal) -> list[str]:
    text = str(principal)
    return [token_id for token_id, record in state.tokens.items() if record.principal == text]


# --- what every change keeps ------------------------------------------------------------------------------------------


def _check_administrator_left(
    state: SecurityState, without: Collection[Principal] = (), without_grants: Collection[str] = ()
) -> None:
    """Raises InvalidInput if no principal could administer the cluster after the change."""
    administrators = set(state.administrators())
    if not administrators:
        return  # `security recover` is the way out, nothing gets worse
    remaining = [
        principal
        for principal, grant_id in administrators
        if principal not in without and grant_id not in without_grants
    ]
    if not remaining:
        raise errors.InvalidInput(
            "this would leave the cluster without an administrator",
            hint="grant the role `administrator` to another account first",
        )


def _full(kind: str, most: int) -> errors.MetadataFull:
    return errors.MetadataFull(f"there are {most} {kind}, which is the maximum", hint="delete those that are not used")


def local_principal(kind: PrincipalKind, name: str) -> Principal:
    """A user or service account. Raises InvalidInput."""
    return Principal(kind, LOCAL, check_principal_name(name))
