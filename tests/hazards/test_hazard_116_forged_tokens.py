"""Hazard 116: tokens and certificates that claim to be something else. The key fixes algorithm, issuer and audience."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.security.access_policy import AccessPolicy, AccessRule, Grant, decide
from icestream.security.account_directory import StoredUser
from icestream.security.action import Action
from icestream.security.certificate_identity import NameType
from icestream.security.credential import BearerCredential, CertificateCredential, PasswordCredential
from icestream.security.external_tokens import IssuerOptions
from icestream.security.principal import CallerIdentity, Principal, service_account
from icestream.security.resource import CLUSTER, Pattern, topic_resource
from icestream.security.signed_token import InvalidToken, parse_token
from tests.support.tokens import DANUBE_KEY, ISSUER, LoginWorld, encode_part, forge, sign

RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
KEY_SET = json.dumps(
    {
        "keys": [
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rsa", "use": "sig", "alg": "RS256"},
            {**ECAlgorithm.to_jwk(EC_KEY.public_key(), as_dict=True), "kid": "ec"},
            {"kty": "oct", "kid": "shared", "k": encode_part(b"x" * 32), "alg": "HS256"},
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "confused", "alg": "HS256"},
            {**RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "for encryption", "use": "enc"},
        ]
    }
).encode()
OPTIONS = IssuerOptions(
    "corp", ISSUER, "icestream", roles_claim="realm.roles", roles={"writers": "writer"}, claims=("team", "level")
)


def claims_of(world: LoginWorld, **changes: Any) -> dict[str, Any]:
    claims = {"iss": ISSUER, "aud": "icestream", "sub": "alice", "exp": world.now + 600, **changes}
    return {name: value for name, value in claims.items() if value is not ...}


def make_world() -> LoginWorld:
    world = LoginWorld(KEY_SET, OPTIONS)
    world.accounts.services["ingest"] = 3
    return world


async def accept(world: LoginWorld, token: str, listener: str = "native") -> CallerIdentity:
    return await world.authenticator.authenticate(BearerCredential(token), "10.0.0.1", listener)


async def refuse(world: LoginWorld, token: str, listener: str = "native") -> str:
    """Checks the one error text; returns the reason that was reported for the audit."""
    with pytest.raises(errors.Unauthenticated, match="the credential is not valid") as caught:
        await accept(world, token, listener)
    assert len(token) < 20 or token[:20] not in str(caught.value)
    return world.failures[-1].reason


@pytest.mark.asyncio
async def test_valid_tokens_are_accepted() -> None:
    world = make_world()
    token = world.service_tokens.mint(service_account("ingest"), 3, ["writer"], 600)
    identity = await accept(world, token.token)
    assert str(identity.principal) == "service:local:ingest"
    assert (identity.roles, identity.credential_id, identity.expires_us, identity.generation) == (
        ("writer",), token.token_id, token.expires_us + limits.TOKEN_SKEW_SECONDS * 1_000_000, 3,
    )  # fmt: skip
    claims = claims_of(
        world, realm={"roles": ["writers", "admins", 7]}, team="blue", level=3, other="x", aud=["b", "icestream"]
    )
    for key, algorithm, key_id in ((RSA_KEY, "RS256", "rsa"), (EC_KEY, "ES256", "ec")):
        identity = await accept(world, sign(claims, key, algorithm, {"kid": key_id}))
        assert str(identity.principal) == "oidc:corp:alice"
        assert (dict(identity.claims), identity.roles) == ({"team": "blue"}, ("writer",))
    assert world.key_set_loads == 1


FORGED: dict[str, Any] = {
    "none": lambda w: forge({"alg": "none", "kid": "rsa"}, claims_of(w), b"xx"),
    "None with an empty signature": lambda w: forge({"alg": "None", "kid": "rsa"}, claims_of(w), b""),
    "HS256 with the public key as secret": lambda w: hs256_with_pem(claims_of(w), "rsa"),
    "HS256 by a key that says so": lambda w: hs256_with_pem(claims_of(w), "confused"),
    "a symmetric key of the set": lambda w: sign(claims_of(w), b"x" * 32, "HS256", {"kid": "shared"}),
    "a key for encryption": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "for encryption"}),
    "another algorithm of the same key": lambda w: sign(claims_of(w), RSA_KEY, "RS512", {"kid": "rsa"}),
    "PSS with a key for PKCS": lambda w: sign(claims_of(w), RSA_KEY, "PS256", {"kid": "rsa"}),
    "the key of another type": lambda w: sign(claims_of(w), EC_KEY, "ES256", {"kid": "rsa"}),
    "an unknown key": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "other"}),
    "a key id that is a path": lambda w: sign(claims_of(w), b"0" * 32, "HS256", {"kid": "../../dev/zero"}),
    "a key id that is a query": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa' or '1'='1"}),
    "a key id that is a list": lambda w: forge({"alg": "RS256", "kid": ["rsa"]}, claims_of(w)),
    "no key id where there are two": lambda w: sign(claims_of(w), RSA_KEY, "RS256"),
    "a key of its own": lambda w: sign(
        claims_of(w), ED_KEY, "EdDSA", {"kid": "rsa", "jwk": {"kty": "OKP", "crv": "Ed25519", "x": "AA"}}
    ),
    "an address of its own": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa", "jku": "https://evil"}),
    "a critical extension": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa", "crit": ["exp"]}),
    "an unencoded payload": lambda w: forge({"alg": "RS256", "kid": "rsa", "b64": False}, claims_of(w)),
    "a token in a token": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa", "cty": "JWT"}),
    "no expiry": lambda w: sign(claims_of(w, exp=...), RSA_KEY, "RS256", {"kid": "rsa"}),
    "expired": lambda w: sign(claims_of(w, exp=w.now - 60), RSA_KEY, "RS256", {"kid": "rsa"}),
    "an expiry as text": lambda w: sign(claims_of(w, exp=str(w.now + 600)), RSA_KEY, "RS256", {"kid": "rsa"}),
    "an expiry that is true": lambda w: sign(claims_of(w, exp=True), RSA_KEY, "RS256", {"kid": "rsa"}),
    "an endless expiry": lambda w: sign(
        b'{"iss":"%s","aud":"icestream","sub":"a","exp":Infinity}' % ISSUER.encode(), RSA_KEY, "RS256", {"kid": "rsa"}
    ),
    "an expiry beyond time": lambda w: sign(claims_of(w, exp=1e300), RSA_KEY, "RS256", {"kid": "rsa"}),
    "not valid yet": lambda w: sign(claims_of(w, nbf=w.now + 61), RSA_KEY, "RS256", {"kid": "rsa"}),
    "issued in the future": lambda w: sign(claims_of(w, iat=w.now + 61), RSA_KEY, "RS256", {"kid": "rsa"}),
    "another audience": lambda w: sign(claims_of(w, aud="grafana"), RSA_KEY, "RS256", {"kid": "rsa"}),
    "no audience": lambda w: sign(claims_of(w, aud=...), RSA_KEY, "RS256", {"kid": "rsa"}),
    "an audience that contains ours": lambda w: sign(claims_of(w, aud="icestream2"), RSA_KEY, "RS256", {"kid": "rsa"}),
    "an audience in a map": lambda w: sign(claims_of(w, aud={"icestream": 1}), RSA_KEY, "RS256", {"kid": "rsa"}),
    "another issuer": lambda w: sign(claims_of(w, iss=ISSUER + "/"), RSA_KEY, "RS256", {"kid": "rsa"}),
    "no issuer": lambda w: sign(claims_of(w, iss=...), RSA_KEY, "RS256", {"kid": "rsa"}),
    "our issuer by their key": lambda w: sign(claims_of(w, iss="icestream"), RSA_KEY, "RS256", {"kid": "rsa"}),
    "a subject that is a list": lambda w: sign(claims_of(w, sub=["alice"]), RSA_KEY, "RS256", {"kid": "rsa"}),
    "a subject in another form": lambda w: sign(claims_of(w, sub="al\u2170ce"), RSA_KEY, "RS256", {"kid": "rsa"}),
    "a claim twice": lambda w: sign(
        b'{"iss":"%s","aud":"icestream","sub":"bob","sub":"alice","exp":%d}' % (ISSUER.encode(), w.now + 9),
        RSA_KEY, "RS256", {"kid": "rsa"},
    ),
    "a claim twice, deep inside": lambda w: sign(
        b'{"iss":"%s","aud":"icestream","sub":"bob","exp":%d,"x":{"a":1,"a":2}}' % (ISSUER.encode(), w.now + 9),
        RSA_KEY, "RS256", {"kid": "rsa"},
    ),
    "a header twice": lambda w: forge('{"alg":"RS256","alg":"none","kid":"rsa"}', claims_of(w)),
    "deeply nested": lambda w: sign(b'{"x":' + b"[" * 3000 + b"]" * 3000 + b"}", RSA_KEY, "RS256", {"kid": "rsa"}),
    "too long": lambda w: sign(claims_of(w, x="y" * 8192), RSA_KEY, "RS256", {"kid": "rsa"}),
    "a payload that is a list": lambda w: sign(b"[1]", RSA_KEY, "RS256", {"kid": "rsa"}),
    "two parts": lambda w: ".".join(sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa"}).split(".")[:2]),
    "five parts": lambda w: "aa.bb.cc.dd.ee",
    "nothing": lambda w: "",
    "other letters": lambda w: "é.é.é",
    "padding": lambda w: sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa"}) + "=",
    "a changed payload": lambda w: changed_payload(sign(claims_of(w), RSA_KEY, "RS256", {"kid": "rsa"})),
    "a service token of an unknown key": lambda w: sign(service_claims(w), ED_KEY, "EdDSA", {"kid": "0011"}),
    "a service token of a guessed key": lambda w: sign(
        service_claims(w), ED_KEY, "EdDSA", {"kid": w.accounts.ring.newest.key_id}
    ),
    "Danube's key on another listener": lambda w: sign(danube_claims(w), DANUBE_KEY, "HS256"),
}  # fmt: skip


def hs256_with_pem(claims: dict[str, Any], key_id: str) -> str:
    """Signs by hand: the library refuses a public key as a secret, an attacker's does not."""
    parts = ({"alg": "HS256", "kid": key_id}, claims)
    signed = ".".join(encode_part(json.dumps(part).encode()) for part in parts)
    return f"{signed}.{encode_part(hmac.digest(RSA_PEM, signed.encode(), hashlib.sha256))}"


def changed_payload(token: str) -> str:
    header, payload, signature = token.split(".")
    return ".".join([header, payload[:-4] + "AAAA", signature])


def service_claims(world: LoginWorld, **changes: Any) -> dict[str, Any]:
    claims = {"iss": "icestream", "aud": "icestream", "sub": "service:local:ingest", "gen": 3, "jti": "1"}
    return {**claims, "exp": world.now + 600, **changes}


def danube_claims(world: LoginWorld, **changes: Any) -> dict[str, Any]:
    claims = {"iss": "danube-auth", "sub": "alice", "principal_type": "user", "principal_name": "alice"}
    return {**claims, "exp": world.now + 600, **changes}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", FORGED)
async def test_hazard_116_forged_tokens_are_refused(name: str) -> None:
    world = make_world()
    assert await refuse(world, FORGED[name](world))


@pytest.mark.asyncio
async def test_two_issuers_that_share_their_keys_are_two() -> None:
    """As the tenants of some providers do: the key is right, the issuer is not."""
    world = make_world()
    issuer = world.authenticator._external_tokens[ISSUER]
    own, other = (
        parse_token(sign(claims_of(world, iss=iss), RSA_KEY, "RS256", {"kid": "rsa"}))
        for iss in (ISSUER, "https://idp.example.com/other")
    )
    assert str((await issuer.verify(own)).principal) == "oidc:corp:alice"
    with pytest.raises(InvalidToken, match="issuer"):
        await issuer.verify(other)


@pytest.mark.asyncio
async def test_the_clocks_may_be_a_minute_apart() -> None:
    world = make_world()
    late = sign(claims_of(world, exp=world.now - 59), RSA_KEY, "RS256", {"kid": "rsa"})
    early = sign(claims_of(world, nbf=world.now + 59), RSA_KEY, "RS256", {"kid": "rsa"})
    assert (await accept(world, late)).principal == (await accept(world, early)).principal
    world.clock.advance(2)
    assert await refuse(world, late) == "expired"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [
        {"sub": "process:local:lake"}, {"sub": "oidc:corp:alice"}, {"sub": "anonymous"}, {"sub": "user:local:\x00"},
        {"gen": True}, {"gen": "3"}, {"gen": 2}, {"roles": "admin"}, {"roles": [1]}, {"admin": True}, {"jti": ""},
        {"sub": "service:local:other"},
    ],
)  # fmt: skip
async def test_claims_of_our_own_tokens_are_strict(changes: dict[str, Any]) -> None:
    """Even with a signing key: a claim that we do not write is not read in some other way."""
    world = make_world()
    newest = world.accounts.ring.newest
    key = ed25519.Ed25519PrivateKey.from_private_bytes(newest.seed)
    good = sign(service_claims(world), key, "EdDSA", {"kid": newest.key_id})
    assert (await accept(world, good)).principal == service_account("ingest")
    assert await refuse(world, sign(service_claims(world, **changes), key, "EdDSA", {"kid": newest.key_id}))


@pytest.mark.asyncio
async def test_tokens_of_danube_are_principals_of_their_own_on_its_listeners_only() -> None:
    world = make_world()
    token = sign(danube_claims(world), DANUBE_KEY, "HS256")
    for listener in ("danube", "danube_admin"):
        assert str((await accept(world, token, listener)).principal) == "danube:user:alice"
    for listener in ("native", "http", "lake", "local", "mqtt"):  # also while the other listener remembers it
        assert await refuse(world, token, listener) == "unknown issuer"
    for changes in (
        {"principal_type": "broker_internal"}, {"principal_type": "admin"}, {"principal_name": ""},
        {"principal_name": ["alice"]}, {"exp": world.now - 61}, {"exp": None},
    ):  # fmt: skip
        assert await refuse(world, sign(danube_claims(world, **changes), DANUBE_KEY, "HS256"), "danube")
    for wrong in (b"another key of thirty-two bytes!!", DANUBE_KEY + b"\n"):
        assert await refuse(world, sign(danube_claims(world), wrong, "HS256"), "danube") == "signature"
    assert await refuse(world, sign(danube_claims(world), DANUBE_KEY + b"0" * 31, "HS512"), "danube") == "signature"


def test_a_principal_of_danube_is_no_administrator_whatever_it_was_granted() -> None:
    everything = AccessRule(frozenset(Action), Pattern.parse("cluster"))
    resources = (CLUSTER, topic_resource(TopicName("shop", "orders")))
    for principal, is_allowed in ((Principal.parse("danube:user:root"), False), (service_account("root"), True)):
        policy = AccessPolicy(True, 1, {}, {principal: (Grant("1", principal, rule=everything),)})
        for resource in resources:
            decision = decide(CallerIdentity(principal), Action.ADMIN, resource, policy)
            assert decision.is_allowed is is_allowed
        assert decide(CallerIdentity(principal), Action.CONSUME, resources[1], policy).is_allowed is is_allowed


@pytest.mark.asyncio
async def test_one_name_of_four_kinds_is_four_principals() -> None:
    world = make_world()
    world.accounts.users["alice"] = StoredUser(await world.passwords.hash("correct horse"), 1)
    world.accounts.services["alice"] = 1
    authenticate = world.authenticator.authenticate
    identities = [
        await authenticate(PasswordCredential("alice", "correct horse"), "::1", "native"),
        await accept(world, world.service_tokens.mint(service_account("alice"), 1, [], 60).token),
        await accept(world, sign(claims_of(world), EC_KEY, "ES256", {"kid": "ec"})),
        await accept(world, sign(danube_claims(world), DANUBE_KEY, "HS256"), "danube"),
        await authenticate(CertificateCredential(certificate(world, [x509.DNSName("alice")])), "::1", "native"),
        await authenticate(CertificateCredential(certificate(world, [x509.DNSName("alice")])), "::1", "danube"),
    ]
    assert len({identity.principal for identity in identities}) == 6


def certificate(world: LoginWorld, names: list[x509.GeneralName], days: tuple[int, int] = (-1, 1)) -> bytes:
    now = datetime.datetime.fromtimestamp(world.now, datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    builder = (
        x509.CertificateBuilder(subject, subject, EC_KEY.public_key(), x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(EC_KEY, SHA256()).public_bytes(Encoding.DER)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("name_type", "names", "principal"),
    [
        ("dns", [x509.DNSName("ingest.example.com")], "certificate:native:ingest.example.com"),
        ("dns", [x509.DNSName("ingest"), x509.RFC822Name("a@b")], "certificate:native:ingest"),
        ("email", [x509.DNSName("ingest"), x509.RFC822Name("a@b")], "certificate:native:a@b"),
        ("uri", [x509.UniformResourceIdentifier("spiffe://x/y")], "certificate:native:spiffe://x/y"),
        ("dns", [], None),
        ("dns", [x509.DNSName("a"), x509.DNSName("b")], None),
        ("dns", [x509.RFC822Name("ingest")], None),
        ("dns", [x509.DNSName("*.example.com")], None),
    ],
)
async def test_only_the_one_subject_alternative_name_of_the_chosen_type_counts(
    name_type: NameType, names: list[x509.GeneralName], principal: str | None
) -> None:
    world = make_world()
    world.authenticator._certificate_names = name_type
    credential = CertificateCredential(certificate(world, names))
    if principal is None:
        with pytest.raises(errors.Unauthenticated, match="the credential is not valid"):
            await world.authenticator.authenticate(credential, "::1", "native")
    else:
        identity = await world.authenticator.authenticate(credential, "::1", "native")
        assert str(identity.principal) == principal
        assert identity.expires_us == (world.now + 24 * 3600) * 1_000_000


@pytest.mark.asyncio
async def test_certificates_outside_of_their_validity_and_other_bytes_are_refused() -> None:
    world = make_world()
    name: list[x509.GeneralName] = [x509.DNSName("ingest")]
    good = certificate(world, name)
    other = trustme.CA().cert_pem.bytes()
    for raw in (certificate(world, name, (-2, -1)), certificate(world, name, (1, 2)), b"", good[:-9], b"\x30", other):
        with pytest.raises(errors.Unauthenticated, match="the credential is not valid"):
            await world.authenticator.authenticate(CertificateCredential(raw), "::1", "native")
