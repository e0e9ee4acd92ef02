"""A metadata store whose process ends at a chosen write: before it is carried out, or before its answer arrives."""

from __future__ import annotations

import asyncio

from icestream.metadata import command as cmd
from icestream.runtime.clock import Clock
from tests.support.broker_machine import KeptStore


class HaltingStore(KeptStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.writes = 0
        self.halted = asyncio.Event()
        self._halt_at = -1
        self._is_carried_out = False

    def halt_at(self, write: int, *, carried_out: bool) -> None:
        """The write of this number, from now on, is the last thing that happens."""
        self._halt_at = self.writes + write
        self._is_carried_out = carried_out
        self.halted = asyncio.Event()

    def go_on(self) -> None:
        """In the next life every write is answered."""
        self._halt_at = -1

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        number, self.writes = self.writes, self.writes + 1
        if number != self._halt_at:
            return await super().submit(command, client, sequence)
        if self._is_carried_out:
            await super().submit(command, client, sequence)
        self.halted.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody answers")
