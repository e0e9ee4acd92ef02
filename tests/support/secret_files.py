"""Files with secrets as operators make them: only their owner may read them, else they are refused."""

from __future__ import annotations

from pathlib import Path


def secret_file(path: Path, text: str | bytes) -> Path:
    """Writes a file of mode 0600; returns its path."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path
