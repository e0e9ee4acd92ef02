"""The lake's applications in front of a real local socket, with accounts: `as_(name)` sends the token of a user.

A table `ns.t` belongs to no topic; `shop.orders` is the table of the topic /shop/orders, `shop.secret` of /shop/secret.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from icestream import errors
from icestream.admin_api.security_api import LOGIN, IssuedToken, LoginRequest
from icestream.catalog.tokens import Tokens
from icestream.frontends.native.public_calls import Call, Caller
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.internal_api.implementation import implements, native_calls
from icestream.lake.dispatch import build_lake_app
from icestream.lake.iceberg.access import NO_ACCESS, Access
from icestream.lake.iceberg.backup_view import ReadableBackups
from icestream.lake.request_caller import BrokerCallers
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from icestream.security.access_control import AccessControl
from icestream.security.credential import BearerCredential, Credential, PasswordCredential
from icestream.security.key_ring import KeyRing
from icestream.security.principal import CallerIdentity
from icestream.security.service_tokens import ServiceTokens
from icestream.security.signed_token import InvalidToken, parse_token
from tests.support.asgi import AsgiClient, AsgiResponse
from tests.support.local_broker import LocalBroker, kept_link, local_broker
from tests.support.secured_access import FixedSecrets, KnownNames, Rules, SecuredAccess, of_role
from tests.support.tables import SCHEMA
from tests.support.topic_tables import ENVELOPE
from tests.support.warehouse import WAREHOUSE, CatalogWorld

ORDERS, SECRET, PLAIN = Identifier(("shop",), "orders"), Identifier(("shop",), "secret"), Identifier(("ns",), "t")


class IssuedOrKnown(KnownNames):
    """Accepts real tokens of this broker beside those of KnownNames."""

    def __init__(self, tokens: ServiceTokens) -> None:
        super().__init__()
        self._tokens = tokens

    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        if isinstance(credential, BearerCredential) and credential.token.count(".") == 2:
            try:
                return self._tokens.verify(parse_token(credential.token))
            except InvalidToken:
                raise errors.Unauthenticated("the credential is not valid") from None
        return await super().authenticate(credential, address, listener)


class LoginCalls:
    """Logins of KnownNames, with real tokens."""

    def __init__(self, control: AccessControl, tokens: ServiceTokens) -> None:
        self._control, self._tokens = control, tokens

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    @implements(LOGIN)
    async def login(self, caller: Caller, request: LoginRequest) -> IssuedToken:
        credential = PasswordCredential(request.name, request.password)
        session = await self._control.authenticate(credential, caller.session.address, caller.session.listener)
        self._control.close_session(session)
        principal = session.identity.principal
        minted = self._tokens.mint(principal, 0, [], 3600)
        return IssuedToken(minted.token, minted.token_id, str(principal), minted.expires_us // 1000)


class SecuredLake(CatalogWorld):
    """A catalog with tables of topics and others, its HTTP applications, and the access control that they ask."""

    def __init__(self, access: AccessControl, warehouse: str = WAREHOUSE) -> None:
        super().__init__(warehouse=warehouse)
        self.access = access
        self.broker: LocalBroker
        self.service_tokens: ServiceTokens
        self.ask: AsgiClient

    async def change(self, rules: Rules) -> None:
        assert isinstance(self.access, SecuredAccess)
        await self.access.change(rules)

    async def as_(self, name: str, method: str, path: str, body: Any = None, **headers: str) -> AsgiResponse:
        """Sends a request as a user; `anonymous` sends no credential."""
        credential = {} if name == "anonymous" else {"authorization": f"Bearer token-of-{name}"}
        named = {header.replace("_", "-"): value for header, value in headers.items()}
        return await self.ask(method, path, body, {**credential, **named})

    async def fill(self) -> None:
        """Creates the tables, without rights: as the pipeline and earlier clients did."""
        await self.catalog.namespaces.create(("ns",), {})
        await self.catalog.namespaces.create(("shop",), {})
        for identifier, schema in ((ORDERS, ENVELOPE), (SECRET, ENVELOPE), (PLAIN, SCHEMA)):
            await self.catalog.tables.create(identifier, {"schema": schema})
        await self.catalog.topics.bind(ORDERS, "/shop/orders", 1, {0: (1, 0)})
        await self.catalog.topics.bind(SECRET, "/shop/secret", 2, {0: (1, 0)})


@contextlib.asynccontextmanager
async def secured_lake(
    path: Path,
    rules: Rules | None,
    access: Access = NO_ACCESS,
    tokens: Tokens | None = None,
    warehouse: str = WAREHOUSE,
    backups: ReadableBackups | None = None,
) -> AsyncIterator[SecuredLake]:
    """`rules`: what each user may do; None: security is off. `backups`: those that views show."""
    control = AccessControl(SystemClock()) if rules is None else SecuredAccess(rules)
    lake = SecuredLake(control, warehouse)
    await lake.fill()
    randomness = SystemRandomness()
    ring = KeyRing.new(randomness, 0)
    service_tokens = ServiceTokens(lambda: ring, SystemClock(), randomness)
    control.authenticator = IssuedOrKnown(service_tokens)
    socket = path / "broker.sock"
    logins = LoginCalls(control, service_tokens)
    async with (
        local_broker(socket, lake.store, access_control=control, roles=FixedSecrets(), more_calls=[logins]) as broker,
        kept_link(socket, of_role("lake")) as keeper,
    ):
        lake.broker, lake.service_tokens = broker, service_tokens
        failures: list[BaseException] = []
        callers = BrokerCallers(keeper, SystemClock(), failures.append)
        manifests = ManifestReader(lake.files, InlineOffload())
        app = build_lake_app(
            keeper, "127.0.0.1", lake.catalog, tokens or Tokens(), manifests, access, callers=callers, backups=backups
        )
        lake.ask = AsgiClient(app)
        try:
            yield lake
        finally:
            await callers.stop()
            assert failures == []
