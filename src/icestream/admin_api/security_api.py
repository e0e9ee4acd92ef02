"""Security: the switch, accounts, tokens, roles, grants, and the explanation of decisions.

A request that carries a password shows it in no `repr`; an answer that carries a token is given once. All calls need
the right `admin` on the cluster, but `security_whoami`, `security_login`, and what concerns the caller alone.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, Answer, Listing, Name, NoArguments, PageRequest
from icestream.model.field_metadata import Doc, Length, NumberBounds

Password = Annotated[str, Doc("Sent over TLS or the local socket only; stored as a hash."), Length(1, 4_096)]
TokenSeconds = Annotated[int, Doc("How long the token is valid."), NumberBounds(1, limits.SECURITY_TOKEN_SECONDS_MAX)]


class _WithPassword(msgspec.Struct):
    """Has a password, which its `repr` does not show."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class NamedPassword(_WithPassword):
    """The name and the password of a user."""

    name: Name
    password: Password


class LoginRequest(_WithPassword, kw_only=True):
    name: Name
    password: Password
    ttl_seconds: Annotated[int | None, Doc("null: `security.login_token_ttl_ms`.")] = None


class NewAccount(_WithPassword, kw_only=True):
    kind: Annotated[str, Doc("`user`, who has a password, or `service`, which has tokens.")] = "user"
    name: Name
    password: Annotated[str, Doc("Of a user.")] = ""


class PrincipalOnly(msgspec.Struct):
    principal: Annotated[str, Doc("Such as `user:local:alice` or `service:local:ingest`; `alice` is a user.")]


class AccountChange(_WithPassword, kw_only=True):
    """A change of an account; a field that is left out stays as it is."""

    is_disabled: bool | None = None
    password: Annotated[str | None, Doc("Of a user. Its tokens and sessions end.")] = None


class ChangeAccount(AccountChange, kw_only=True):
    principal: str


class PageTokens(PageRequest, kw_only=True):
    principal: Annotated[str, Doc("Only those of this account; empty: of all.")] = ""


class NewToken(msgspec.Struct, kw_only=True):
    principal: Annotated[str, Doc("The service account, or user, that the token stands for.")]
    ttl_seconds: TokenSeconds = 90 * 24 * 3600
    note: Annotated[str, Doc("For which program it is issued."), Length(0, limits.SECURITY_NOTE_BYTES_MAX)] = ""


class TokenOnly(msgspec.Struct):
    token_id: str


class RoleRule(msgspec.Struct):
    actions: Annotated[list[str], Doc("Actions, or the groups `read`, `write`, `all`.")]
    resource: Annotated[str, Doc("Such as `/shop/orders`, `topic:/shop/*`, `cluster`.")]


class RoleRules(msgspec.Struct):
    rules: list[RoleRule]


class PutRole(RoleRules):
    role: Name


class RoleOnly(msgspec.Struct):
    role: str


class PageGrants(PageRequest, kw_only=True):
    principal: Annotated[str, Doc("Only those of this principal; empty: of all.")] = ""


class NewGrant(msgspec.Struct, kw_only=True):
    """A role, or actions and a resource."""

    principal: str
    role: str = ""
    actions: list[str] = []
    resource: str = ""
    scope: Annotated[str, Doc("Of a role: where it applies, such as `/shop/orders`, `namespace:/shop`.")] = ""


class GrantOnly(msgspec.Struct):
    grant_id: str


class AccessQuestion(msgspec.Struct, kw_only=True):
    principal: str
    action: Annotated[str, Doc("Such as `consume`.")]
    resource: Annotated[str, Doc("Such as `/shop/orders`.")]
    roles: Annotated[list[str], Doc("Roles that the credential would bring.")] = []
    claims: Annotated[dict[str, str], Doc("Claims that the credential would have.")] = {}


class SecurityChange(Answer):
    """A change that is in force on this node."""

    revision: Annotated[int, Doc("Of the metadata store, since which it is in force.")]
    pending_nodes: Annotated[list[str], Doc("Nodes of the cluster that have not applied it yet, or do not answer.")]


class SecurityInitialised(SecurityChange):
    principal: str
    is_clustered: Annotated[bool, Doc("True: the other nodes need a copy of the wrapping key.")]


class CallerDetails(Answer):
    is_enabled: Annotated[bool, Doc("False while security is off: then everything is allowed.")]
    principal: str
    roles: Annotated[list[str], Doc("That the credential brings.")]
    grants: Annotated[list[str], Doc("Roles and rules that are granted to the principal.")]
    is_administrator: bool
    token_id: Annotated[str, Doc("Of the token; empty for another credential.")]
    expires_ms: Annotated[int | None, Doc("When the credential ends; null: it does not.")]


class AccountDetails(Answer):
    principal: str
    kind: str
    name: str
    is_disabled: bool
    created_ms: int
    grants: Annotated[int, Doc("How many it has, without parked ones.")]
    tokens: Annotated[int, Doc("How many are valid.")]


class TokenDetails(Answer):
    token_id: str
    principal: str
    note: str
    created_ms: int
    expires_ms: int


class IssuedToken(Answer):
    """The only answer that has a token. It is not stored anywhere."""

    token: str
    token_id: str
    principal: str
    expires_ms: int

    def __repr__(self) -> str:
        return f"IssuedToken({self.token_id})"


class RoleDetails(Answer):
    role: str
    rules: list[RoleRule]
    is_built_in: bool


class GrantDetails(Answer):
    grant_id: str
    principal: str
    role: str
    actions: list[str]
    resource: str
    scope: Annotated[str, Doc("Of a role: where it applies; empty: everywhere.")]
    binding: Annotated[str, Doc("The id of the binding that made it, by Danube's tools.")]
    is_parked: Annotated[bool, Doc("True after its topic was deleted: it has no effect until it is unparked.")]
    created_ms: int


class ExplainedRule(Answer):
    source: Annotated[str, Doc("The grant or role that it comes from.")]
    rule: str
    allows: bool


class AccessExplanation(Answer):
    principal: str
    action: str
    resource: str
    is_allowed: bool
    reason: Annotated[str, Doc("The rule that decided.")]
    rules: Annotated[list[ExplainedRule], Doc("Every rule of the principal.")]


class SigningKeyDetails(Answer):
    key_id: str
    created_ms: int
    is_signing: Annotated[bool, Doc("True for the key that signs new tokens; the others only verify.")]


class SigningKeys(Answer):
    keys: Annotated[list[SigningKeyDetails], Doc("The keys whose tokens are accepted, the newest first.")]


class KeyOnly(msgspec.Struct):
    key_id: str


class KeyRingChange(SecurityChange):
    key_ids: Annotated[list[str], Doc("The keys of the ring; the first one signs from now on.")]


class ProcessRole(msgspec.Struct):
    role: Annotated[str, Doc("`lake` or `pipeline`.")]


class ProcessSecretFile(Answer):
    """The secret itself is in the file alone."""

    role: str
    file: Annotated[str, Doc("On the machine of the broker that answers.")]


INIT_SECURITY: Final = AdminCall("security_init", NamedPassword, SecurityInitialised)
RECOVER_SECURITY: Final = AdminCall("security_recover", NamedPassword, SecurityChange)
LOGIN: Final = AdminCall("security_login", LoginRequest, IssuedToken)
WHOAMI: Final = AdminCall("security_whoami", NoArguments, CallerDetails)
PAGE_ACCOUNTS: Final = AdminCall("security_page_accounts", PageRequest, Listing[AccountDetails])
CREATE_ACCOUNT: Final = AdminCall("security_create_account", NewAccount, AccountDetails)
CHANGE_ACCOUNT: Final = AdminCall("security_change_account", ChangeAccount, SecurityChange)
DELETE_ACCOUNT: Final = AdminCall("security_delete_account", PrincipalOnly, SecurityChange)
PAGE_TOKENS: Final = AdminCall("security_page_tokens", PageTokens, Listing[TokenDetails])
CREATE_TOKEN: Final = AdminCall("security_create_token", NewToken, IssuedToken)
REVOKE_TOKEN: Final = AdminCall("security_revoke_token", TokenOnly, SecurityChange)
REVOKE_ALL_TOKENS: Final = AdminCall("security_revoke_all_tokens", PrincipalOnly, SecurityChange)
ROTATE_KEYS: Final = AdminCall("security_rotate_keys", NoArguments, KeyRingChange)
LIST_KEYS: Final = AdminCall("security_list_keys", NoArguments, SigningKeys)
REMOVE_KEY: Final = AdminCall("security_remove_key", KeyOnly, KeyRingChange)
CREATE_PROCESS_SECRET: Final = AdminCall("security_create_process_secret", ProcessRole, ProcessSecretFile)
DELETE_PROCESS_SECRET: Final = AdminCall("security_delete_process_secret", ProcessRole, ProcessSecretFile)
PAGE_ROLES: Final = AdminCall("security_page_roles", PageRequest, Listing[RoleDetails])
PUT_ROLE: Final = AdminCall("security_put_role", PutRole, RoleDetails)
DELETE_ROLE: Final = AdminCall("security_delete_role", RoleOnly, SecurityChange)
PAGE_GRANTS: Final = AdminCall("security_page_grants", PageGrants, Listing[GrantDetails])
CREATE_GRANT: Final = AdminCall("security_create_grant", NewGrant, GrantDetails)
DELETE_GRANT: Final = AdminCall("security_delete_grant", GrantOnly, SecurityChange)
UNPARK_GRANT: Final = AdminCall("security_unpark_grant", GrantOnly, SecurityChange)
EXPLAIN_ACCESS: Final = AdminCall("security_explain", AccessQuestion, AccessExplanation)
