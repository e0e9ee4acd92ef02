"""`security`: how clients prove their identity, and what is audited. In effect after `icestream security init`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import Broken, Section

_TTL = units.duration("ms", 1_000, limits.SECURITY_TOKEN_SECONDS_MAX * 1_000)
_GRACE = units.duration("ms", 1_000, limits.ACCESS_GRACE_MS_MAX)


class OidcSection(Section):
    """An issuer of OpenID Connect whose tokens are accepted."""

    name: Annotated[str, text.NAME] = Field(
        default="oidc",
        description="Name of the issuer in principals: `oidc:NAME:alice`. Grants hold it, so it should not change.",
    )
    issuer: Annotated[str, text.HTTPS_URI] | None = Field(
        default=None, description="The issuer, exactly as its tokens have it in `iss`. Unset: no such tokens."
    )
    audience: Annotated[str, text.PRINTABLE] | None = Field(
        default=None,
        description="What `aud` of a token must contain. Required, because a token for another application of the same "
        "issuer must not be valid here.",
    )
    jwks_uri: Annotated[str, text.HTTPS_URI] | None = Field(
        default=None,
        description="Where the issuer publishes its keys. They are fetched when a token names a new one, at most once "
        "a minute, and kept for a day when the issuer does not answer.",
    )
    jwks_file: Annotated[Path, text.FILE] | None = Field(
        default=None, description="File with the keys of the issuer, used instead of `jwks_uri`. Read again hourly."
    )
    name_claim: Annotated[str, text.CLAIM] = Field(
        default="sub",
        description="Claim that is the name of the principal. Choose one that users cannot change by themselves: many "
        "issuers let them change their e-mail address.",
    )
    roles_claim: Annotated[str, text.CLAIM] | None = Field(
        default=None,
        description="Claim with the groups or roles of the issuer, a list or words; `realm_access.roles` reaches into "
        "a map. Unset: tokens bring no roles.",
    )
    roles: tuple[Annotated[str, text.ROLE_MAPPING], ...] = Field(
        default=(),
        description="Which role each value of `roles_claim` brings: `value=role`. Values that are not listed bring "
        "nothing.",
    )
    claims: tuple[Annotated[str, text.CLAIM], ...] = Field(
        default=(), description="Claims that patterns of grants may use: `/{claims.team}/*`."
    )

    def broken_rules(self) -> Iterator[Broken]:
        if self.issuer is None:
            return
        if self.audience is None:
            yield Broken(
                ("audience", "issuer"), "an `issuer` needs an `audience`", "set what its tokens for us contain"
            )
        if self.jwks_uri is None and self.jwks_file is None:
            yield Broken(
                ("jwks_uri", "jwks_file", "issuer"),
                "an `issuer` needs its keys: `jwks_uri` or `jwks_file`",
                "its document /.well-known/openid-configuration names `jwks_uri`",
            )


class SecuritySection(Section):
    """Accounts, credentials and the audit. In force after `icestream security init`; without it nothing is asked."""

    certificate_names: Literal["dns", "email", "uri"] = Field(
        default="dns",
        description="Type of the subject alternative name that is the principal of a client certificate. The subject "
        "itself is never used.",
    )
    danube_key_file: Annotated[Path, text.FILE] | None = Field(
        default=None,
        description="File (0600) with Danube's JWT key, so that tokens which its tools have minted (HS256) are "
        "accepted on Danube's ports, and nowhere else. The key must have at least "
        f"{limits.SHARED_KEY_BYTES_MIN} bytes.",
    )
    login_token_ttl_ms: Annotated[int, _TTL] = Field(
        default=limits.LOGIN_TOKEN_SECONDS_DEFAULT * 1_000,
        description="How long the token is valid that a login with a password gives.",
    )
    partition_grace_login_ms: Annotated[int, _GRACE] = Field(
        default=limits.ACCESS_LOGIN_GRACE_MS,
        description="A node that has had no leader for so long accepts no new logins, producers and consumers: it "
        "cannot know what was revoked meanwhile.",
    )
    partition_grace_hold_ms: Annotated[int, _GRACE] = Field(
        default=limits.ACCESS_HOLD_GRACE_MS,
        description="A node that has had no leader for so long closes the producers and consumers that are open.",
    )
    audit_access: StrictBool = Field(
        default=False,
        description="Record every access that is allowed, too: opened producers and consumers, changes, requests; "
        "never single messages. Denials, failed logins and changes are always recorded.",
    )
    audit_events_per_second: Annotated[int, units.count(1, limits.AUDIT_EVENTS_PER_SECOND_MAX)] = Field(
        default=limits.AUDIT_EVENTS_PER_SECOND,
        description="Events of denials, failed logins and accesses that are recorded in a second; equal ones are one "
        "event with a count. What is above is counted, not recorded: an attacker must not fill the log. "
        "Administrative changes are not bounded by it.",
    )
    oidc: OidcSection = OidcSection()

    def broken_rules(self) -> Iterator[Broken]:
        if self.partition_grace_hold_ms < self.partition_grace_login_ms:
            yield Broken(
                ("partition_grace_hold_ms", "partition_grace_login_ms"),
                "open producers and consumers would close before new logins are refused",
                "set `partition_grace_hold_ms` to at least `partition_grace_login_ms`",
            )
