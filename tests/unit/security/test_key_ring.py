"""Signing keys: rotation, removal, and how they are wrapped."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness, SystemRandomness
from icestream.runtime.secret_file import create_secret_file, read_secret_file
from icestream.security.key_ring import KeyRing, KeyRingReader, WrappingKey, create_wrapping_key, read_wrapping_key
from icestream.security.principal import ANONYMOUS, local_user, service_account
from icestream.security.service_tokens import ServiceTokens
from icestream.security.signed_token import InvalidToken, parse_token

RANDOMNESS = SeededRandomness(1)
TOKEN_US = limits.SECURITY_TOKEN_SECONDS_MAX * 1_000_000


def test_hazard_119_a_stored_ring_has_no_key_in_clear() -> None:
    ring, wrapping_key = KeyRing.new(RANDOMNESS, 5), WrappingKey(b"w" * 32)
    wrapped = ring.encode(wrapping_key, RANDOMNESS)
    assert KeyRing.decode(wrapped, wrapping_key) == ring
    assert ring.encode(wrapping_key, RANDOMNESS) != wrapped  # another nonce
    seed = ring.newest.seed
    for form in (seed, base64.b64encode(seed), seed.hex().encode()):
        assert form not in wrapped
    assert seed.hex() not in repr(ring)
    assert "www" not in repr(wrapping_key)


def test_changed_bytes_and_other_keys_are_refused() -> None:
    ring, wrapping_key = KeyRing.new(RANDOMNESS, 5), WrappingKey(b"w" * 32)
    wrapped = ring.encode(wrapping_key, RANDOMNESS)
    hostile = [wrapped[:length] for length in range(len(wrapped))]
    hostile += [wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :] for at in range(len(wrapped))]
    for changed in hostile:
        with pytest.raises(errors.MetadataDamaged):
            KeyRing.decode(changed, wrapping_key)
    with pytest.raises(errors.MetadataDamaged, match="another key"):
        KeyRing.decode(wrapped, WrappingKey(b"x" * 32))
    for plain in (b"{}", b"[]", b'{"keys": [1]}', b'{"keys": [], "x": 1}'):
        with pytest.raises(errors.MetadataDamaged, match="not a key ring"):
            KeyRing.decode(wrapping_key.wrap(plain, RANDOMNESS), wrapping_key)


def test_a_rotated_key_verifies_until_its_last_token_has_expired() -> None:
    clock = SimulatedClock()
    rings = [KeyRing.new(RANDOMNESS, clock.wall_us())]
    tokens = ServiceTokens(lambda: rings[-1], clock, RANDOMNESS)
    old = tokens.mint(service_account("ingest"), 1, [], limits.SECURITY_TOKEN_SECONDS_MAX)
    clock.advance(1)
    rings.append(rings[-1].rotated(RANDOMNESS, clock.wall_us()))
    new = tokens.mint(service_account("ingest"), 1, [], 60)
    assert [tokens.verify(parse_token(token.token)).credential_id for token in (old, new)] == [
        old.token_id,
        new.token_id,
    ]
    assert parse_token(old.token).key_id != parse_token(new.token).key_id
    rings.append(rings[-1].without(rings[0].newest.key_id))  # it leaked
    with pytest.raises(InvalidToken, match="unknown key"):
        tokens.verify(parse_token(old.token))
    assert tokens.verify(parse_token(new.token)).credential_id == new.token_id


def test_a_rotation_drops_keys_without_valid_tokens_and_no_others() -> None:
    ring = KeyRing.new(RANDOMNESS, 0).rotated(RANDOMNESS, 10)
    first, second = ring.keys[1], ring.keys[0]
    # The first signed until 10, so its last token ends at 10 + TOKEN_US.
    assert ring.rotated(RANDOMNESS, 9 + TOKEN_US).keys[1:] == (second, first)
    assert ring.rotated(RANDOMNESS, 10 + TOKEN_US).keys[1:] == (second,)


def test_the_ring_is_bounded_and_keeps_its_last_key() -> None:
    ring = KeyRing.new(RANDOMNESS, 0)
    with pytest.raises(errors.InvalidInput, match="last signing key"):
        ring.without(ring.newest.key_id)
    with pytest.raises(errors.InvalidInput, match="no signing key"):
        ring.without("other")
    with pytest.raises(errors.ConfigurationError, match="no signing key"):
        _ = KeyRing().newest
    for number in range(1, limits.SIGNING_KEYS_MAX):
        ring = ring.rotated(RANDOMNESS, number)
    with pytest.raises(errors.Refused, match=f"{limits.SIGNING_KEYS_MAX} keys"):
        ring.rotated(RANDOMNESS, 100)


@pytest.mark.parametrize(("account", "seconds"), [(ANONYMOUS, 60), (service_account("a"), 0), (local_user("a"), 2**40)])
def test_tokens_are_minted_for_accounts_and_a_bounded_time(account: object, seconds: int) -> None:
    ring = KeyRing.new(RANDOMNESS, 0)
    tokens = ServiceTokens(lambda: ring, SimulatedClock(), RANDOMNESS)
    with pytest.raises(errors.InvalidInput):
        tokens.mint(account, 1, [], seconds)  # type: ignore[arg-type]


def test_a_token_is_not_in_the_text_of_what_minted_it() -> None:
    ring = KeyRing.new(RANDOMNESS, 0)
    token = ServiceTokens(lambda: ring, SimulatedClock(), RANDOMNESS).mint(local_user("a"), 1, [], 60)
    assert token.token not in f"{token} {token!r}"


def test_the_wrapping_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    assert read_wrapping_key(tmp_path) is None
    key = create_wrapping_key(tmp_path, SystemRandomness())
    assert create_wrapping_key(tmp_path, SystemRandomness()) == key == read_wrapping_key(tmp_path)
    path = tmp_path / "security" / "wrapping.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["wrapping.key"]
    path.write_bytes(b"half a key")
    with pytest.raises(errors.ConfigurationError, match="not a wrapping key"):
        read_wrapping_key(tmp_path)


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_secret_file(path, b"canary\n")
    assert read_secret_file(path) == b"canary"
    with pytest.raises(FileExistsError):
        create_secret_file(path, b"another")
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(errors.ConfigurationError, match="can be read by other accounts") as caught:
            read_secret_file(path)
        assert "canary" not in str(caught.value)
    path.chmod(0o600)
    path.write_bytes(b"")
    with pytest.raises(errors.ConfigurationError, match="empty"):
        read_secret_file(path)
    with pytest.raises(errors.ConfigurationError, match="Is a directory"):
        read_secret_file(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(errors.ConfigurationError, match="regular file"):
        read_secret_file(tmp_path / "pipe")
    with pytest.raises(errors.ConfigurationError, match="No such file"):
        read_secret_file(tmp_path / "other")


def test_the_reader_follows_the_stored_ring(tmp_path: Path) -> None:
    stored = [b""]
    reads: list[Path] = []

    def read() -> WrappingKey | None:
        reads.append(tmp_path)
        return read_wrapping_key(tmp_path)

    ring_reader = KeyRingReader(lambda: stored[0], read)
    assert ring_reader() == KeyRing()
    assert not reads, "a broker without accounts looks for no key"
    ring = KeyRing.new(RANDOMNESS, 0)
    stored[0] = ring.encode(WrappingKey(b"w" * 32), RANDOMNESS)
    assert ring_reader() == KeyRing(), "the node has no wrapping key yet"
    wrapping_key = create_wrapping_key(tmp_path, SystemRandomness())
    stored[0] = ring.encode(wrapping_key, RANDOMNESS)
    assert ring_reader() == ring
    assert ring_reader() is ring_reader()
    rotated = ring.rotated(RANDOMNESS, 1)
    stored[0] = rotated.encode(wrapping_key, RANDOMNESS)
    assert ring_reader() == rotated
    stored[0] = stored[0][:-1]
    assert ring_reader() == KeyRing(), "what cannot be unwrapped verifies nothing"
