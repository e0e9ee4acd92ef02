"""Builds the authenticator of a node from the settings: which credentials it accepts, and where their keys are.

Files and keys are read once, when the node starts: a file that is missing or readable by others stops the start with
the reason, instead of refusing logins later. The keys of an external issuer are fetched with its first token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.secret_file import read_secret_file
from icestream.runtime.tasks import ThreadOffload
from icestream.security.account_directory import AccountDirectory
from icestream.security.authenticator import Authenticator, FailedLogin
from icestream.security.danube_tokens import DanubeTokens
from icestream.security.external_tokens import ExternalTokens, IssuerOptions
from icestream.security.jwks import KeySet, fetch_key_set, read_key_file
from icestream.security.key_ring import KeyRingReader, read_wrapping_key
from icestream.security.password_hashing import PasswordHashing
from icestream.security.service_tokens import ServiceTokens
from icestream.settings import Settings


def issuer_options(settings: Settings) -> IssuerOptions | None:
    """The external issuer whose tokens are accepted; None if there is none."""
    oidc = settings.security.oidc
    if oidc.issuer is None or oidc.audience is None:
        return None
    return IssuerOptions(
        oidc.name,
        oidc.issuer,
        oidc.audience,
        oidc.name_claim,
        oidc.roles_claim or "",
        dict(mapping.rsplit("=", 1) for mapping in oidc.roles),
        oidc.claims,
    )


def configured_tokens(
    settings: Settings, directory: AccountDirectory, clock: Clock, randomness: Randomness
) -> ServiceTokens:
    """The tokens of this cluster, by the present keys of the directory."""
    ring = KeyRingReader(directory.key_ring, partial(read_wrapping_key, settings.data_dir))
    return ServiceTokens(ring, clock, randomness)


def open_authenticator(
    settings: Settings,
    directory: AccountDirectory,
    passwords: PasswordHashing,
    service_tokens: ServiceTokens,
    clock: Clock,
    on_failed: Callable[[FailedLogin], None],
) -> Authenticator:
    """The authenticator of a node; `close` ends it. Raises ConfigurationError for a file that cannot be used."""
    security = settings.security
    danube_tokens = None
    if security.danube_key_file is not None:
        danube_tokens = DanubeTokens(read_secret_file(security.danube_key_file), clock)
    return Authenticator(
        directory,
        passwords,
        service_tokens,
        clock,
        external_tokens=_external_tokens(settings, clock),
        danube_tokens=danube_tokens,
        certificate_names=security.certificate_names,
        on_failed=on_failed,
    )


def _external_tokens(settings: Settings, clock: Clock) -> list[ExternalTokens]:
    options, oidc = issuer_options(settings), settings.security.oidc
    if options is None:
        return []
    load: Callable[[], bytes]
    if oidc.jwks_file is not None:
        load = partial(read_key_file, oidc.jwks_file)
    else:
        load = partial(fetch_key_set, oidc.jwks_uri or "")
    keys = KeySet(load, options.issuer, options.audience, clock, ThreadOffload("key sets"))
    return [ExternalTokens(options, keys, clock)]
