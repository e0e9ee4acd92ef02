"""A credential becomes an identity, or Unauthenticated: the one place where credentials are verified.

    credential     listener          verified by
    password       every             argon2id hash of the account; delayed after failures (login_throttle.py)
    bearer         every             `iss` selects: our own tokens, or an external issuer
                   danube's          else, Danube's shared key
    certificate    with TLS          TLS; its subject alternative name is the principal

A process of the node is no matter of this module: BrokerDoor verifies its secret (role_secrets.py).

Every failure is answered with the same text, whatever its reason: the reason goes to the audit. Password logins are
delayed per address and name; tokens are not, because a signature cannot be guessed and a client with an expired token
must not delay others of its address.

A verified token is remembered by its digest for TOKEN_CACHE_SECONDS, and never beyond its expiry. Whether it was
revoked is looked up each time, so a revocation applies at once; `forget_tokens` drops the rest when the policy
changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.observability import metrics
from icestream.runtime.clock import Clock
from icestream.security.account_directory import AccountDirectory
from icestream.security.caller_address import address_group
from icestream.security.certificate_identity import NameType, certificate_identity
from icestream.security.credential import (
    BearerCredential,
    CertificateCredential,
    Credential,
    PasswordCredential,
    ProcessCredential,
)
from icestream.security.danube_tokens import LISTENERS as DANUBE_LISTENERS
from icestream.security.danube_tokens import DanubeTokens
from icestream.security.external_tokens import ExternalTokens
from icestream.security.login_throttle import LoginThrottle
from icestream.security.password_hashing import PasswordHashing
from icestream.security.principal import LOCAL, CallerIdentity, Principal, PrincipalKind, check_principal_name
from icestream.security.service_tokens import ISSUER, ServiceTokens
from icestream.security.signed_token import InvalidToken, parse_token


class FailedLogin(NamedTuple):
    """A login that failed, for the audit. `name`: what the client claimed to be, empty where it is not known."""

    name: str
    address: str
    listener: str
    reason: str


def unauthenticated() -> errors.Unauthenticated:
    """The error of every failed login."""
    return errors.Unauthenticated(
        "the credential is not valid",
        hint="check name and password, or the token and when it expires; compare the clocks of both machines",
    )


def _ignore_failure(failure: FailedLogin) -> None:
    pass


class Authenticator:
    """Verifies credentials. One instance in the broker process; `close` ends its threads."""

    def __init__(
        self,
        directory: AccountDirectory,
        passwords: PasswordHashing,
        service_tokens: ServiceTokens,
        clock: Clock,
        *,
        external_tokens: Sequence[ExternalTokens] = (),
        danube_tokens: DanubeTokens | None = None,
        certificate_names: NameType = "dns",
        on_failed: Callable[[FailedLogin], None] = _ignore_failure,
    ) -> None:
        """`on_failed` must not wait."""
        self._directory = directory
        self._passwords = passwords
        self._service_tokens = service_tokens
        self._external_tokens = {issuer.options.issuer: issuer for issuer in external_tokens}
        self._danube_tokens = danube_tokens
        self._certificate_names: NameType = certificate_names
        self._clock = clock
        self._on_failed = on_failed
        self._throttle = LoginThrottle()
        self._verified = _VerifiedTokens(clock)

    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        """The identity of a credential. Raises Unauthenticated; Refused where too many logins wait."""
        try:
            identity = await self._verify(credential, address, listener)
        except InvalidToken as failure:
            metrics.LOGINS.add("failed")
            self._on_failed(FailedLogin(_claimed_name(credential), address, listener, str(failure)))
            # One answer for every reason: what was wrong is for the audit, not for callers that guess.
            raise unauthenticated() from None
        except errors.Refused:
            metrics.LOGINS.add("throttled")
            raise
        metrics.LOGINS.add("ok")
        return identity

    def is_current(self, identity: CallerIdentity) -> bool:
        """Whether the account of a verified identity still has its generation, its token was not revoked, and the key
        that signed it is still in the ring."""
        name, generation = identity.principal.name, None
        match identity.principal.kind:
            case PrincipalKind.USER:
                account = self._directory.find_user(name)
                generation = account.generation if account is not None else None
            case PrincipalKind.SERVICE:
                generation = self._directory.find_service(name)
            case _:
                generation = identity.generation
        if generation != identity.generation or (identity.key_id and not self._service_tokens.has_key(identity.key_id)):
            return False
        return not (identity.credential_id and self._directory.is_revoked(identity.credential_id))

    def forget_tokens(self) -> None:
        """Makes every token be verified again: keys, issuers or accounts have changed."""
        self._verified.clear()

    async def close(self) -> None:
        self._passwords.close()
        for issuer in self._external_tokens.values():
            await issuer.close()

    async def _verify(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        match credential:
            case BearerCredential():
                return await self._verify_token(credential.token, listener)
            case PasswordCredential():
                return await self._verify_password(credential, address)
            case CertificateCredential():
                return certificate_identity(
                    credential.certificate, listener, self._certificate_names, self._clock.wall_us()
                )
            case ProcessCredential():
                raise InvalidToken("process secret")  # BrokerDoor verifies those of the local socket

    async def _verify_token(self, token: str, listener: str) -> CallerIdentity:
        is_danube = listener in DANUBE_LISTENERS
        if (identity := self._verified.find(token, is_danube)) is None:
            identity = await self._read_token(token, is_danube=is_danube)
            self._verified.add(token, is_danube, identity)
        # Also for a cached one: the signature stays valid when the account or the token is revoked.
        if not self.is_current(identity):
            raise InvalidToken("revoked")
        return identity

    async def _read_token(self, token: str, *, is_danube: bool) -> CallerIdentity:
        # The claimed issuer only chooses the keys, and each of them verifies tokens of its own issuer alone.
        unverified = parse_token(token)
        if unverified.issuer == ISSUER:
            return self._service_tokens.verify(unverified)
        if (issuer := self._external_tokens.get(unverified.issuer)) is not None:
            return await issuer.verify(unverified)
        if is_danube and self._danube_tokens is not None:
            return self._danube_tokens.verify(unverified)
        raise InvalidToken("unknown issuer")

    async def _verify_password(self, credential: PasswordCredential, address: str) -> CallerIdentity:
        name, address = _known_form(credential.name), address_group(address)
        delay_ms = self._throttle.begin(address, name, self._now_ms())
        if delay_ms is None:
            raise errors.Refused("a login of this name waits already", hint="try again in some seconds")
        try:
            if delay_ms:
                await self._clock.sleep(delay_ms / 1000)
            account = self._directory.find_user(name) if name else None
            stored_hash = account.password_hash if account is not None else None
            # Also without an account, against a hash that nothing fits: the time does not tell which names exist.
            fits = await self._passwords.verify(stored_hash, credential.password, address)
        except BaseException:  # also a cancelled login: its place in the queue of the name is free again
            self._throttle.abandon(address, name)
            raise
        if not fits or account is None:
            self._throttle.fail(address, name, self._now_ms())
            raise InvalidToken("password")
        self._throttle.succeed(address, name)
        return CallerIdentity(Principal(PrincipalKind.USER, LOCAL, name), generation=account.generation)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000


class _VerifiedTokens:
    """Identities of tokens that were verified lately, by digest: the cache holds no token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[bytes, bool], tuple[int, CallerIdentity]] = {}

    def find(self, token: str, is_danube: bool) -> CallerIdentity | None:
        entry = self._entries.get(_cache_key(token, is_danube))
        if entry is None:
            return None
        until_ns, identity = entry
        expires_us = identity.expires_us
        is_fresh = self._clock.monotonic_ns() < until_ns
        return identity if is_fresh and (expires_us is None or self._clock.wall_us() < expires_us) else None

    def add(self, token: str, is_danube: bool, identity: CallerIdentity) -> None:
        if len(self._entries) >= limits.TOKEN_CACHE_ENTRIES:
            del self._entries[next(iter(self._entries))]
        until_ns = self._clock.monotonic_ns() + limits.TOKEN_CACHE_SECONDS * 1_000_000_000
        key = _cache_key(token, is_danube)
        self._entries.pop(key, None)
        self._entries[key] = (until_ns, identity)

    def clear(self) -> None:
        self._entries.clear()


def _cache_key(token: str, is_danube: bool) -> tuple[bytes, bool]:
    # Whether the listener is Danube's is a part of it: a token of Danube's key must not be found by another listener.
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest(), is_danube


def _known_form(name: str) -> str:
    """A name that an account can have, else empty: what is in no form of a name is counted as one."""
    try:
        return check_principal_name(name)
    except (errors.InvalidInput, UnicodeEncodeError):
        return ""


def _claimed_name(credential: Credential) -> str:
    match credential:
        case PasswordCredential():
            return credential.name
        case ProcessCredential():
            return f"process:{credential.role}"
        case _:
            return ""
