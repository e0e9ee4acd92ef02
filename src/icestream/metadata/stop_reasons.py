"""Errors with which a node of the metadata store stops (rules 5 and 6 of node.py), with hints for operators."""

from __future__ import annotations

from icestream import errors
from icestream.metadata.log_recovery import MEMBER_HINT
from icestream.metadata.proposals import UNKNOWN_HINT
from icestream.wal.sink import SinkError


def disk_failed(error: SinkError) -> errors.LogStopped:
    """The error of a failed write or sync."""
    return errors.LogStopped(
        f"a {error.operation} of the metadata log failed (errno {error.errno}): the node stops",
        hint="check the disk, then start again: recovery rewrites and syncs the unsealed part",
    )


def outdated(witness: str, confirmed: str, present: str) -> errors.LogOutdated:
    """The error of a log that lacks entries which this node has confirmed."""
    return errors.LogOutdated(
        f"the metadata log of this node is outdated: it ends at {present}, but {witness} knows that this node "
        f"confirmed {confirmed}",
        hint=MEMBER_HINT,
    )


def broken(error: BaseException) -> errors.IcestreamError:
    """The error of an unexpected exception."""
    if isinstance(error, errors.IcestreamError):
        return error
    return errors.LogStopped(f"the metadata store stops: {error!r}", hint="start the node again")


def unknown_outcome() -> errors.OutcomeUnknown:
    """The error of commands that are in the log of a stopped node."""
    return errors.OutcomeUnknown("the metadata store stopped before this was confirmed", hint=UNKNOWN_HINT)
