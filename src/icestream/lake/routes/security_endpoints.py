"""/api/v1/security: accounts, tokens, roles, grants and decisions

Security is switched on by `icestream security init` at the broker itself, and recovered there; neither is a route.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from icestream.admin_api import security_api as api
from icestream.admin_api.admin_call import Listing
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, extend, model_of

router = APIRouter(prefix=f"{PREFIX}/security", tags=["security"])
_CHANGE = model_of(api.SecurityChange)
PrincipalQuery = Annotated[str, Query(description="Only of this principal.", max_length=1_000)]


@router.get("/whoami", response_model=model_of(api.CallerDetails), summary="Show as whom the request is seen")
async def whoami(broker: BrokerDep) -> api.CallerDetails:
    return await broker(api.WHOAMI)


@router.post("/login", response_model=model_of(api.IssuedToken), summary="Get a token for a user and a password")
async def login(
    broker: BrokerDep, request: Annotated[api.LoginRequest, body(api.LoginRequest)], response: Response
) -> api.IssuedToken:
    response.headers["Cache-Control"] = "no-store"
    return await broker(api.LOGIN, request)


@router.post("/explain", response_model=model_of(api.AccessExplanation), summary="Explain a decision")
async def explain_access(
    broker: BrokerDep, question: Annotated[api.AccessQuestion, body(api.AccessQuestion)]
) -> api.AccessExplanation:
    return await broker(api.EXPLAIN_ACCESS, question)


# --- accounts ---


@router.get(
    "/accounts", response_model=model_of(Listing[api.AccountDetails]), summary="List users and service accounts"
)
async def list_accounts(broker: BrokerDep, page: PageDep) -> Listing[api.AccountDetails]:
    return await broker(api.PAGE_ACCOUNTS, page)


@router.post(
    "/accounts",
    response_model=model_of(api.AccountDetails),
    status_code=201,
    summary="Create a user or a service account",
)
async def create_account(
    broker: BrokerDep, new: Annotated[api.NewAccount, body(api.NewAccount)], response: Response
) -> api.AccountDetails:
    account = await broker(api.CREATE_ACCOUNT, new)
    response.headers["Location"] = f"{PREFIX}/security/accounts/{quote(account.principal, safe='')}"
    return account


@router.patch("/accounts/{principal}", response_model=_CHANGE, summary="Set the password, disable or enable")
async def change_account(
    broker: BrokerDep, principal: str, change: Annotated[api.AccountChange, body(api.AccountChange)]
) -> api.SecurityChange:
    return await broker(api.CHANGE_ACCOUNT, extend(api.ChangeAccount, change, principal=principal))


@router.delete("/accounts/{principal}", response_model=_CHANGE, summary="Delete an account with its grants and tokens")
async def delete_account(broker: BrokerDep, principal: str) -> api.SecurityChange:
    return await broker(api.DELETE_ACCOUNT, api.PrincipalOnly(principal))


# --- tokens ---


@router.get("/tokens", response_model=model_of(Listing[api.TokenDetails]), summary="List valid tokens by id")
async def list_tokens(broker: BrokerDep, page: PageDep, principal: PrincipalQuery = "") -> Listing[api.TokenDetails]:
    return await broker(api.PAGE_TOKENS, extend(api.PageTokens, page, principal=principal))


@router.post(
    "/tokens", response_model=model_of(api.IssuedToken), status_code=201, summary="Issue a token; it is shown once"
)
async def create_token(
    broker: BrokerDep, new: Annotated[api.NewToken, body(api.NewToken)], response: Response
) -> api.IssuedToken:
    response.headers["Cache-Control"] = "no-store"
    return await broker(api.CREATE_TOKEN, new)


@router.delete("/tokens/{token_id}", response_model=_CHANGE, summary="Revoke a token")
async def revoke_token(broker: BrokerDep, token_id: str) -> api.SecurityChange:
    return await broker(api.REVOKE_TOKEN, api.TokenOnly(token_id))


@router.delete("/accounts/{principal}/tokens", response_model=_CHANGE, summary="Revoke all tokens of an account")
async def revoke_all_tokens(broker: BrokerDep, principal: str) -> api.SecurityChange:
    return await broker(api.REVOKE_ALL_TOKENS, api.PrincipalOnly(principal))


@router.get("/keys", response_model=model_of(api.SigningKeys), summary="List the signing keys by id")
async def list_keys(broker: BrokerDep) -> api.SigningKeys:
    return await broker(api.LIST_KEYS)


@router.post("/keys", response_model=model_of(api.KeyRingChange), summary="Sign new tokens with a new key")
async def rotate_keys(broker: BrokerDep) -> api.KeyRingChange:
    return await broker(api.ROTATE_KEYS)


@router.delete(
    "/keys/{key_id}", response_model=model_of(api.KeyRingChange), summary="Remove a signing key; its tokens end"
)
async def remove_key(broker: BrokerDep, key_id: str) -> api.KeyRingChange:
    return await broker(api.REMOVE_KEY, api.KeyOnly(key_id))


# --- roles ---


@router.get("/roles", response_model=model_of(Listing[api.RoleDetails]), summary="List roles")
async def list_roles(broker: BrokerDep, page: PageDep) -> Listing[api.RoleDetails]:
    return await broker(api.PAGE_ROLES, page)


@router.put("/roles/{role}", response_model=model_of(api.RoleDetails), summary="Create a role or replace its rules")
async def put_role(
    broker: BrokerDep, role: str, rules: Annotated[api.RoleRules, body(api.RoleRules)]
) -> api.RoleDetails:
    return await broker(api.PUT_ROLE, extend(api.PutRole, rules, role=role))


@router.delete("/roles/{role}", response_model=_CHANGE, summary="Delete a role that no principal has")
async def delete_role(broker: BrokerDep, role: str) -> api.SecurityChange:
    return await broker(api.DELETE_ROLE, api.RoleOnly(role))


# --- grants ---


@router.get("/grants", response_model=model_of(Listing[api.GrantDetails]), summary="List grants")
async def list_grants(broker: BrokerDep, page: PageDep, principal: PrincipalQuery = "") -> Listing[api.GrantDetails]:
    return await broker(api.PAGE_GRANTS, extend(api.PageGrants, page, principal=principal))


@router.post(
    "/grants",
    response_model=model_of(api.GrantDetails),
    status_code=201,
    summary="Grant a role, or actions on a resource",
)
async def create_grant(
    broker: BrokerDep, new: Annotated[api.NewGrant, body(api.NewGrant)], response: Response
) -> api.GrantDetails:
    grant = await broker(api.CREATE_GRANT, new)
    response.headers["Location"] = f"{PREFIX}/security/grants/{grant.grant_id}"
    return grant


@router.delete("/grants/{grant_id}", response_model=_CHANGE, summary="Delete a grant")
async def delete_grant(broker: BrokerDep, grant_id: str) -> api.SecurityChange:
    return await broker(api.DELETE_GRANT, api.GrantOnly(grant_id))


@router.post("/grants/{grant_id}/unpark", response_model=_CHANGE, summary="Put a parked grant in force again")
async def unpark_grant(broker: BrokerDep, grant_id: str) -> api.SecurityChange:
    return await broker(api.UNPARK_GRANT, api.GrantOnly(grant_id))
