"""The stored entry of a key, and the change events of watches."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The stored entry of a key.

    Not tracked by the garbage collector: a million of them would make each full collection a stall (hazard 28).
    """

    value: bytes
    create_revision: int
    mod_revision: int
    version: int  # number of puts since its creation, from 1
    deadline_ms: int  # 0: no deadline
    lease_ms: int = 0  # above 0: a lease; each renewal extends it by this much (leases.py)


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key changed; `value` is None if it was deleted.

    Hundreds of thousands are kept for watches, so the garbage collector does not track them either.
    """

    key: str
    value: bytes | None
    revision: int
