"""Password hashes: bounded in number, off the loop, the same work for names that do not exist."""

from __future__ import annotations

import asyncio
import threading

import pytest

from icestream import errors, limits
from icestream.runtime.tasks import InlineOffload
from icestream.security.password_hashing import PasswordHashing
from tests.support.held_offload import HeldOffload


def light(offload: object = None) -> PasswordHashing:
    return PasswordHashing(offload or InlineOffload(), memory_kib=8)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_a_hash_verifies_its_password_and_no_other() -> None:
    passwords = light()
    first, second = await passwords.hash("correct horse"), await passwords.hash("correct horse")
    assert first != second
    assert first.startswith("$argon2id$")
    assert await passwords.verify(first, "correct horse")
    for wrong in ("correct horsf", "", "correct horse\x00", "correct horse" * 1000, "\ud800"):
        assert not await passwords.verify(first, wrong)


@pytest.mark.asyncio
@pytest.mark.parametrize("password", ["", "pässwrd", "x" * (limits.PASSWORD_BYTES_MAX + 1)])
async def test_passwords_have_a_length(password: str) -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        await light().hash(password)
    assert not password or password not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("stored_hash", [None, "", "$argon2id$", "plain text", "$argon2id$v=19$m=8,t=2,p=1$AAAA$AAAA"])
async def test_no_password_fits_an_invalid_hash(stored_hash: str | None) -> None:
    passwords = light()
    assert not await passwords.verify(stored_hash, "a password of nobody")
    assert not await passwords.verify(stored_hash, "")


@pytest.mark.asyncio
async def test_hazard_120_an_unknown_name_costs_a_hash_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from argon2 import PasswordHasher

    verified: list[str] = []
    original = PasswordHasher.verify

    def count(self: PasswordHasher, stored: str, password: str) -> bool:
        verified.append(stored)
        return original(self, stored, password)

    monkeypatch.setattr(PasswordHasher, "verify", count)
    passwords = light()
    stored = await passwords.hash("correct horse")
    assert not await passwords.verify(stored, "wrong password")
    assert not await passwords.verify(None, "wrong password")
    parameters = [text.rsplit("$", 2)[0] for text in verified]
    assert len(verified) == 2
    assert parameters[0] == parameters[1]


@pytest.mark.asyncio
async def test_hazard_120_hashes_are_bounded_in_number_and_one_address_has_a_share() -> None:
    offload = HeldOffload()
    offload.hold()
    passwords = light(offload)
    places = limits.PASSWORD_QUEUE_MAX + limits.PASSWORD_THREADS
    logins = [
        asyncio.create_task(passwords.verify(None, "x", f"address {number // limits.PASSWORD_ADDRESS_MAX}"))
        for number in range(places)
    ]
    await offload.until_waiting(places)
    with pytest.raises(errors.Refused):
        await passwords.verify(None, "x", "another address")
    offload.release()
    assert await asyncio.gather(*logins) == [False] * places

    offload.hold()
    logins = [asyncio.create_task(passwords.verify(None, "x", "attacker")) for _ in range(limits.PASSWORD_ADDRESS_MAX)]
    await offload.until_waiting(limits.PASSWORD_ADDRESS_MAX)
    with pytest.raises(errors.Refused):
        await passwords.verify(None, "x", "attacker")
    home = asyncio.create_task(passwords.verify(None, "x", "home"))
    await offload.until_waiting(limits.PASSWORD_ADDRESS_MAX + 1)
    offload.release()
    assert not await home
    assert await asyncio.gather(*logins) == [False] * limits.PASSWORD_ADDRESS_MAX
    assert not await passwords.verify(None, "x", "attacker")


@pytest.mark.asyncio
async def test_hashing_runs_in_threads_of_its_own() -> None:
    passwords = PasswordHashing(memory_kib=8)
    stored = await passwords.hash("correct horse")
    assert await passwords.verify(stored, "correct horse")
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("passwords")]
    assert 1 <= len(names) <= limits.PASSWORD_THREADS
    passwords.close()
