"""The stored entry of a key, and the change events of watches."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Not tracked by the garbage collector: a million of them would make each full collection a stall (hazard 28)."""

    value: bytes
    create_revision: int
    mod_revision: int
    version: int  # how many revisions have put it since its creation, from 1
    deadline_ms: int  # 0: for ever
    lease_ms: int = 0  # above 0: it may live on beyond its deadline, by so much with each renewal (leases.py)


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key changed. `value` is None when it was deleted. Hundreds of thousands are kept for watches: as above."""

    key: str
    value: bytes | None
    revision: int
