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
        if self.wait_seconds < 0:
            raise errors.InvalidInput(f"wait {self.wait_seconds} is below 0")
        for name in ("connect", "call", "send", "heartbeat"):
            if not getattr(self, f"{name}_seconds") > 0:
                raise errors.InvalidInput(f"the {name} timeout is not above 0", hint="it is in seconds")
        if len(self.name.encode()) > limits.NAME_BYTES_MAX:
            raise errors.InvalidInput(f"the name of a client has more than {limits.NAME_BYTES_MAX} bytes")
