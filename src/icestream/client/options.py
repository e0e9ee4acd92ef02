"""What a client is told once, by `connect`. Times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from icestream import errors, limits


@dataclass(frozen=True, slots=True)
class ClientOptions:
    name: str = ""
    wait_seconds: float = 0.0
    connect_seconds: float = limits.CLIENT_CONNECT_SECONDS_DEFAULT
    call_seconds: float = limits.CLIENT_CALL_SECONDS_DEFAULT
    send_seconds: float = limits.CLIENT_SEND_SECONDS_DEFAULT
    heartbeat_seconds: float = limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT
    compression: bool = False

    def __post_init__(self) -> None:
        if not _is_number(self.wait_seconds) or not self.wait_seconds >= 0:
            raise errors.InvalidInput(f"wait={self.wait_seconds!r} is not a time to wait", hint="0 seconds or more")
        for name in ("connect_timeout", "call_timeout", "send_timeout", "heartbeat"):
            found = getattr(self, f"{name.removesuffix('_timeout')}_seconds")
            if not _is_number(found) or not found > 0:
                raise errors.InvalidInput(f"{name}={found!r} is not a time", hint="it is in seconds, above 0")
        if not _is_name(self.name):
            raise errors.InvalidInput(
                "the name of a client is not text, or too long", hint=f"at most {limits.NAME_BYTES_MAX} bytes fit"
            )


def _is_name(found: object) -> bool:
    return isinstance(found, str) and len(found.encode(errors="replace")) <= limits.NAME_BYTES_MAX


def _is_number(found: object) -> bool:
    return isinstance(found, int | float)
