"""Calls about the erasure of messages (docs/adr/0119)."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from icestream.admin_api.admin_call import AdminCall, Answer
from icestream.model.field_metadata import Doc


class NewErasure(msgspec.Struct):
    topic: Annotated[str, Doc("/namespace/name")]
    where: Annotated[str, Doc("Which messages: the predicate of `icestream lake erase`.")]
    mode: Annotated[str, Doc("dry-run, erase or check")] = "dry-run"
    history: Annotated[
        str, Doc("What becomes of older snapshots and tags that have the messages: drop, rewrite; empty: refused.")
    ] = ""


class BegunErasure(Answer):
    id: str


class ErasureOnly(msgspec.Struct):
    topic: Annotated[str, Doc("/namespace/name")]
    id: Annotated[str, Doc("Of the erasure; empty: only the key of this node is asked for.")] = ""


class ErasureState(Answer):
    phase: Annotated[str, Doc("commit, search, erase, rewrite, history or log")]
    done: Annotated[int, Doc("Files of this phase that are done.")]
    all: int
    is_done: bool
    error: Annotated[str, Doc("Why it ended without being finished; empty otherwise.")]
    hint: str
    public_key: Annotated[str, Doc("Ed25519, hexadecimal: by which this node signs reports.")]
    report: Annotated[dict[str, Any] | None, Doc("The signed report; null before the end.")] = None


BEGIN_ERASURE: Final = AdminCall("begin_erasure", NewErasure, BegunErasure)
ERASURE_STATE: Final = AdminCall("erasure_state", ErasureOnly, ErasureState)
