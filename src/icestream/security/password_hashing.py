"""Passwords: argon2id hashes, made and verified in a small pool of threads.

A verification takes tens of milliseconds of CPU and 19 MiB of memory on purpose. So it runs off the event loop, on at
most PASSWORD_THREADS threads, and at most PASSWORD_QUEUE_MAX wait; beyond that a login is refused at once, and so is
one of an address that has PASSWORD_ADDRESS_MAX of them waiting: one address cannot take all places (hazard 120).

A name that has no password is verified against a dummy hash, so that its time does not tell whether it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from icestream import errors, limits
from icestream.runtime.tasks import Offload, ThreadOffload

if TYPE_CHECKING:
    from argon2 import PasswordHasher

Result = TypeVar("Result")


def check_password(password: str) -> str:
    """Returns a password that may be set. Raises InvalidInput, without the password in it."""
    if len(password) < limits.PASSWORD_CHARACTERS_MIN or len(password.encode()) > limits.PASSWORD_BYTES_MAX:
        raise errors.InvalidInput(
            "the password is too short or too long",
            hint=f"at least {limits.PASSWORD_CHARACTERS_MIN} characters, at most {limits.PASSWORD_BYTES_MAX} bytes",
        )
    return password


class PasswordHashing:
    """Hashes and verifies passwords, a bounded number at once."""

    def __init__(self, offload: Offload | None = None, memory_kib: int = limits.PASSWORD_MEMORY_KIB) -> None:
        """`offload`: None for threads of its own, which `close` ends. `memory_kib`: less in tests."""
        self._offload = offload
        self._memory_kib = memory_kib
        self._hasher: PasswordHasher | None = None
        self._dummy_hash = ""
        self._waiting = 0
        self._waiting_of: Counter[str] = Counter()

    async def hash(self, password: str) -> str:
        """The hash of a new password, as text with its parameters. Raises InvalidInput, Refused."""
        check_password(password)
        return await self._run("", lambda: self._library().hash(password))

    async def verify(self, stored_hash: str | None, password: str, address: str = "") -> bool:
        """Whether the password fits the hash. None, for a name that has none: False, after the same time.

        Raises Refused if too many logins wait.
        """
        return await self._run(address, lambda: self._verify(stored_hash, password))

    def close(self) -> None:
        """Ends the threads; verifications under way are completed."""
        if self._offload is not None:
            self._offload.close()

    async def _run(self, address: str, call: Callable[[], Result]) -> Result:
        places = limits.PASSWORD_QUEUE_MAX + limits.PASSWORD_THREADS
        if self._waiting >= places or (address and self._waiting_of[address] >= limits.PASSWORD_ADDRESS_MAX):
            raise errors.Refused("too many logins wait", hint="try again in a second")
        if self._offload is None:
            self._offload = ThreadOffload("passwords", limits.PASSWORD_THREADS)
        self._waiting += 1
        self._waiting_of[address] += 1
        try:
            return await self._offload.run(call)
        finally:
            self._waiting -= 1
            self._waiting_of[address] -= 1
            if not self._waiting_of[address]:
                del self._waiting_of[address]

    def _library(self) -> PasswordHasher:
        if self._hasher is None:
            from argon2 import PasswordHasher  # late: a broker without accounts does not need it

            self._hasher = PasswordHasher(time_cost=2, memory_cost=self._memory_kib, parallelism=1)
        return self._hasher

    def _verify(self, stored_hash: str | None, password: str) -> bool:
        from argon2.exceptions import Argon2Error, InvalidHashError

        library = self._library()
        # Made by the first verification of either kind, so that it does not tell the two apart.
        self._dummy_hash = self._dummy_hash or library.hash("a password of nobody")
        raw = password.encode(errors="surrogatepass")  # what is no text fits nothing, after the same time
        is_long = len(raw) > limits.PASSWORD_BYTES_MAX
        try:
            library.verify(self._dummy_hash if stored_hash is None else stored_hash, b"" if is_long else raw)
        except (Argon2Error, InvalidHashError):
            return False
        return stored_hash is not None and not is_long
