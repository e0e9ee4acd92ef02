"""Encrypted objects: every cut, flipped bit, swap and wrong key is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.backup.encryption import BackupKey, decrypt, encrypt, load_key
from tests.support.secret_files import secret_file

KEY = BackupKey(bytes(range(32)))
NONCE = b"12345678"


def stored(data: bytes, role: str = "data", nonce: bytes = NONCE) -> bytes:
    return b"".join(encrypt([data[:7], data[7:]], KEY, role, nonce))


def plain(data: bytes, role: str = "data", key: BackupKey = KEY) -> bytes:
    return b"".join(decrypt("object", [data], key, role))


@pytest.mark.parametrize("size", [0, 1, 100, limits.MIB - 1, limits.MIB, limits.MIB + 1, 3 * limits.MIB])
def test_bytes_come_back(size: int) -> None:
    data = bytes(number % 251 for number in range(size % 1000)) + bytes(max(0, size - size % 1000))
    data = data[:size].ljust(size, b"x")
    assert plain(stored(data)) == data


def test_every_cut_and_every_flipped_bit_is_refused() -> None:
    data = stored(b"forty bytes of a message, more or less..")
    for end in range(len(data)):
        with pytest.raises((errors.BackupDamaged, errors.ConfigurationError)):
            plain(data[:end])
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            with pytest.raises((errors.BackupDamaged, errors.ConfigurationError)):
                plain(flipped)
    with pytest.raises(errors.BackupDamaged):
        plain(data + b"\0")


def test_frames_cannot_change_places_or_be_left_out() -> None:
    data = stored(b"a" * limits.MIB + b"b" * limits.MIB + b"c")
    front, frame = len(data) - 2 * (limits.MIB + 16) - 17, limits.MIB + 16
    frames = [data[front + number * frame : front + (number + 1) * frame] for number in range(3)]
    for order in ((1, 0, 2), (0, 2), (0, 1), (0, 1, 1, 2)):
        with pytest.raises(errors.BackupDamaged):
            plain(data[:front] + b"".join(frames[number] for number in order))


def test_another_role_and_another_key_are_refused() -> None:
    with pytest.raises(errors.BackupDamaged, match="cannot be authenticated"):
        plain(stored(b"x"), role="tail")
    with pytest.raises(errors.ConfigurationError, match="is encrypted with key"):
        plain(stored(b"x"), key=BackupKey(bytes(32)))


def test_the_same_bytes_differ_with_each_nonce() -> None:
    assert stored(b"x", nonce=b"a" * 8) != stored(b"x", nonce=b"b" * 8)


def test_keys_come_from_files_variables_and_commands(tmp_path: Path) -> None:
    text = bytes(range(32)).hex()
    path = secret_file(tmp_path / "key", f"{text}\n")
    ids = {
        load_key(f"file:{path}", {}).id,
        load_key("env:BACKUP_KEY", {"BACKUP_KEY": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}).id,
        load_key(f"command:cat {path}", {}).id,
    }
    assert ids == {KEY.id}
    for source in (f"file:{tmp_path}/none", "env:NONE", "command:false", "hex:00", "env:SHORT", "env:NONSENSE"):
        with pytest.raises(errors.ConfigurationError) as refused:
            load_key(source, {"SHORT": "00ff", "NONSENSE": "not a key!"})
        assert "00ff" not in str(refused.value)
    path.chmod(0o640)
    with pytest.raises(errors.ConfigurationError, match="can be read by other accounts"):
        load_key(f"file:{path}", {})
