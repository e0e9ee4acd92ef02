"""The authenticator that settings describe: whose tokens it accepts, and which settings stop a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from icestream import errors
from icestream.processes.node.configured_authenticator import configured_tokens, issuer_options, open_authenticator
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.secret_file import create_secret_file
from icestream.security.account_directory import StoredUser
from icestream.security.authenticator import Authenticator, FailedLogin
from icestream.security.credential import BearerCredential
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.password_hashing import PasswordHashing
from icestream.security.principal import service_account
from icestream.settings import Settings, load
from tests.support.tokens import DANUBE_KEY, sign

KEY = ed25519.Ed25519PrivateKey.generate()


class StoredAccounts:
    """A directory with the service account `ingest` and a wrapped ring."""

    def __init__(self, wrapped: bytes) -> None:
        self._wrapped = wrapped

    def find_user(self, name: str) -> StoredUser | None:
        return None

    def find_service(self, name: str) -> int | None:
        return 1 if name == "ingest" else None

    def is_revoked(self, token_id: str) -> bool:
        return False

    def key_ring(self) -> bytes:
        return self._wrapped


def settings_of(tmp_path: Path, **security: Any) -> Settings:
    return Settings.model_validate({"data_dir": str(tmp_path), "security": security})


def opened(settings: Settings) -> tuple[Authenticator, Any, list[FailedLogin]]:
    clock, randomness, failures = SystemClock(), SystemRandomness(), list[FailedLogin]()
    wrapping_key = create_wrapping_key(settings.data_dir, randomness)
    directory = StoredAccounts(KeyRing.new(randomness, clock.wall_us()).encode(wrapping_key, randomness))
    tokens = configured_tokens(settings, directory, clock, randomness)
    passwords = PasswordHashing(memory_kib=8)
    authenticator = open_authenticator(settings, directory, passwords, tokens, clock, failures.append)
    return authenticator, tokens, failures


@pytest.mark.asyncio
async def test_tokens_of_every_configured_kind_are_accepted(tmp_path: Path) -> None:
    key_file, danube_file = tmp_path / "keys.json", tmp_path / "danube.key"
    key = {**OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "a"}
    key_file.write_text(json.dumps({"keys": [key]}))
    create_secret_file(danube_file, DANUBE_KEY + b"\n")
    oidc = {
        "name": "corp", "issuer": "https://idp", "audience": "icestream", "jwks_file": str(key_file),
        "roles_claim": "groups", "roles": ["x=y=writer"], "claims": ["team"],
    }  # fmt: skip
    authenticator, tokens, failures = opened(settings_of(tmp_path, danube_key_file=str(danube_file), oidc=oidc))
    end = SystemClock().wall_us() // 1_000_000 + 60
    claims = {"iss": "https://idp", "aud": "icestream", "sub": "alice", "exp": end, "groups": ["x=y"], "team": "blue"}
    danube_claims = {"principal_type": "service_account", "principal_name": "bob", "exp": end}
    identities = [
        await authenticator.authenticate(BearerCredential(token), "", "danube")
        for token in (
            tokens.mint(service_account("ingest"), 1, [], 60).token,
            sign(claims, KEY, "EdDSA", {"kid": "a"}),
            sign(danube_claims, DANUBE_KEY, "HS256"),
        )
    ]
    assert [str(identity.principal) for identity in identities] == [
        "service:local:ingest", "oidc:corp:alice", "danube:service_account:bob",
    ]  # fmt: skip
    assert (identities[1].roles, dict(identities[1].claims)) == (("writer",), {"team": "blue"})
    await authenticator.close()
    assert not failures


@pytest.mark.asyncio
async def test_without_settings_only_tokens_of_the_cluster_are_accepted(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert issuer_options(settings) is None
    authenticator, _, failures = opened(settings)
    claims = {"principal_type": "user", "principal_name": "bob", "exp": 2**33}
    with pytest.raises(errors.Unauthenticated):
        await authenticator.authenticate(BearerCredential(sign(claims, DANUBE_KEY, "HS256")), "", "danube")
    assert [failure.reason for failure in failures] == ["unknown issuer"]
    await authenticator.close()


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [(DANUBE_KEY, 0o644, "other accounts"), (b"short", 0o600, "could be guessed"), (b"", 0o600, "empty")],
)
def test_a_key_of_danube_that_cannot_be_used_stops_the_start(
    tmp_path: Path, content: bytes, mode: int, text: str
) -> None:
    file = tmp_path / "danube.key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(errors.ConfigurationError, match=text) as caught:
        opened(settings_of(tmp_path, danube_key_file=str(file)))
    assert DANUBE_KEY.decode() not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["oidc.issuer=https://idp"], "needs an `audience`"),
        (["oidc.issuer=https://idp", "oidc.audience=a"], "needs its keys"),
        (["oidc.issuer=http://idp"], "https URI"),
        (["oidc.jwks_uri=http://169.254.169.254/keys"], "https URI"),
        (["oidc.jwks_uri=https://user:secret@idp/keys"], "https URI"),
        (["oidc.roles=[admins]"], "a value and a role"),
        (["oidc.claims=[te am]"], "name of a claim"),
        (["partition_grace_hold_ms=5s"], "would close before"),
        (["audit_events_per_second=0"], "whole number"),
        (["certificate_names=subject"], "dns or email or uri"),
        (["login_token_ttl_ms=400d"], "duration"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(flags: list[str], text: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=text):
        load(flags=[f"security.{flag}" for flag in flags])
