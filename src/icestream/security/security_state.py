"""The records of security as values: what a node knows, the policy that follows from it, and which credentials ended.

Pure. PolicyWatch feeds it with the entries and events of the metadata store; SecurityStore plans changes with it.

A record that cannot be decoded, of a newer version or damaged, gives no right (security_records.py); `problems` names
its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import TypeVar

from icestream import errors
from icestream.security import security_records as records
from icestream.security.access_policy import OPEN_POLICY, AccessPolicy, AccessRole, Grant, may_administer
from icestream.security.access_session import expired
from icestream.security.account_directory import StoredUser
from icestream.security.principal import LOCAL, CallerIdentity, Principal, PrincipalKind

Value = TypeVar("Value")


class SecurityState:
    """The records below `/security/`, decoded. Compared by its records."""

    def __init__(self) -> None:
        self.is_enabled = False
        self.serial = 0
        self.changes_revision = 0  # of `/security/changes`; 0 if it is absent
        self.wrapped_keys = b""
        self.users: dict[str, records.AccountRecord] = {}
        self.services: dict[str, records.AccountRecord] = {}
        self.roles: dict[str, AccessRole] = {}
        self.role_records: dict[str, records.RoleRecord] = {}
        self.grants: dict[str, Grant] = {}
        self.grant_records: dict[str, records.GrantRecord] = {}
        self.grant_keys: dict[str, str] = {}
        self.tokens: dict[str, records.TokenRecord] = {}
        self.revoked: set[str] = set()
        self.problems: dict[str, str] = {}  # by key: why its record gives no right
        self._grants_of: dict[Principal, tuple[Grant, ...]] = {}  # in order of their ids

    @classmethod
    def load(cls, entries: Iterable[tuple[str, bytes, int]]) -> SecurityState:
        """The state of all entries: (key, value, revision of the last change)."""
        state = cls()
        for key, value, revision in entries:
            state.apply(key, value, revision)
        return state

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        """Takes over the new value of a key; None: it was deleted."""
        self.problems.pop(key, None)
        try:
            self._apply(key, value, revision)
        except errors.InvalidInput as error:
            self.problems[key] = error.message
            if key != records.CHANGES:
                self._apply(key, None, revision)

    def _apply(self, key: str, value: bytes | None, revision: int) -> None:
        folder, _, name = key.removeprefix(records.SECURITY).partition("/")
        match folder:
            case "enabled":
                self.is_enabled = value is not None
            case "changes":
                self.changes_revision = 0 if value is None else revision
                self.serial = 0 if value is None else records.decode(records.ChangesRecord, value).serial
            case "keys":
                self.wrapped_keys = value or b""
            case "users":
                _set(self.users, records.unquoted(name), value, _decode_account)
            case "services":
                _set(self.services, records.unquoted(name), value, _decode_account)
            case "roles":
                self._set_role(records.unquoted(name), value)
            case "grants" | "topic_grants":
                self._set_grant(key, value)
            case "tokens":
                _set(
                    self.tokens, records.unquoted(name), value, lambda value: records.decode(records.TokenRecord, value)
                )
            case "revoked":
                # In force by its key alone: a value that cannot be decoded must not bring a token back.
                (self.revoked.discard if value is None else self.revoked.add)(records.unquoted(name))

    def _set_role(self, name: str, value: bytes | None) -> None:
        role = None if value is None else records.decode(records.RoleRecord, value)
        parsed = None if role is None else role.parse(name)
        if role is None or parsed is None:
            self.role_records.pop(name, None)
            self.roles.pop(name, None)
        else:
            self.role_records[name], self.roles[name] = role, parsed

    def _set_grant(self, key: str, value: bytes | None) -> None:
        grant_id = key.rpartition("/")[2]
        record = None if value is None else records.decode(records.GrantRecord, value)
        grant = None if record is None else record.parse(grant_id)
        former = self.grants.pop(grant_id, None)
        self.grant_records.pop(grant_id, None)
        self.grant_keys.pop(grant_id, None)
        if former is not None:
            others = tuple(other for other in self._grants_of.pop(former.principal) if other.grant_id != grant_id)
            if others:
                self._grants_of[former.principal] = others
        if record is not None and grant is not None:
            self.grants[grant_id], self.grant_records[grant_id], self.grant_keys[grant_id] = grant, record, key
            of_principal = (*self._grants_of.get(grant.principal, ()), grant)
            self._grants_of[grant.principal] = tuple(sorted(of_principal, key=lambda grant: grant.grant_id))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecurityState) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    # --- what follows from it ---

    def policy(self, revision: int) -> AccessPolicy:
        """The policy of the present records."""
        if not self.is_enabled:
            return OPEN_POLICY
        # Shallow copies: a policy of 20,000 grants costs a millisecond for each change.
        return AccessPolicy(True, revision, MappingProxyType(dict(self.roles)), MappingProxyType(dict(self._grants_of)))

    def grants_of(self, principal: Principal) -> tuple[Grant, ...]:
        """The grants of a principal, parked ones included."""
        return self._grants_of.get(principal, ())

    def account(self, principal: Principal) -> records.AccountRecord | None:
        """The record of a local user or service account; None for any other principal."""
        if principal.issuer != LOCAL:
            return None
        if principal.kind is PrincipalKind.USER:
            return self.users.get(principal.name)
        return self.services.get(principal.name) if principal.kind is PrincipalKind.SERVICE else None

    def administrators(self) -> Iterator[tuple[Principal, str]]:
        """The principals that can administer the cluster now, each with the id of a grant that lets it."""
        for grant in self.grants.values():
            if (
                grant.is_parked
                or grant.scope is not None
                or not may_administer(grant.principal)
                or not self._is_usable(grant.principal)
            ):
                continue
            role = self.roles.get(grant.role)
            rules = (grant.rule,) if grant.rule is not None else (role.rules if role is not None else ())
            if any(rule.is_administration for rule in rules):
                yield grant.principal, grant.grant_id

    def _is_usable(self, principal: Principal) -> bool:
        """False for a local account that is disabled or gone: it cannot log in."""
        if principal.kind not in (PrincipalKind.USER, PrincipalKind.SERVICE):
            return True
        account = self.account(principal)
        return account is not None and not account.is_disabled

    def find_end(self, identity: CallerIdentity, now_us: int) -> errors.Unauthenticated | None:
        """Why a credential that was valid when its session began is not valid any more; None if it still is."""
        principal = identity.principal
        if not self.is_enabled:
            return None
        if identity.expires_us is not None and identity.expires_us <= now_us:
            return expired(identity)
        if identity.credential_id and identity.credential_id in self.revoked:
            return _ended(f"the token {identity.credential_id} of {principal} was revoked")
        if principal.kind not in (PrincipalKind.USER, PrincipalKind.SERVICE):
            return None
        account = self.account(principal)
        if account is None:
            return _ended(f"the account {principal} was deleted")
        if account.is_disabled:
            return _ended(f"the account {principal} is disabled")
        if identity.generation < account.generation:
            return _ended(f"the credentials of {principal} were revoked")
        return None

    # --- for the authenticator (account_directory.py) ---

    def find_user(self, name: str) -> StoredUser | None:
        account = self.users.get(name)
        if account is None or account.is_disabled:
            return None
        return StoredUser(account.password_hash, account.generation)

    def find_service(self, name: str) -> int | None:
        account = self.services.get(name)
        return None if account is None or account.is_disabled else account.generation

    def is_revoked(self, token_id: str) -> bool:
        return token_id in self.revoked


def _decode_account(value: bytes) -> records.AccountRecord:
    return records.decode(records.AccountRecord, value)


def _set(table: dict[str, Value], name: str, value: bytes | None, decode: Callable[[bytes], Value]) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = decode(value)


def _ended(reason: str) -> errors.Unauthenticated:
    return errors.Unauthenticated(reason, hint="log in again, or use another credential")
