"""Which caller may make which call of the local socket. Decisions over values.

    call                                          while security is on
    a use case of the broker (topics, …)          by the rights of the session: GuardedBroker asks
    administration of security                    by the rights of the session: security_calls.py asks
    CLUSTER_RIGHTS                                by a right on the cluster
    PROCESS_CALLS                                 by processes of the node that proved their role (hazard 108)
    OPEN_CALLS                                    every client of the socket

    caller                                        rights that decide
    a process of the node, with `session`         those of the session that it opened for its client
    a process of the node, without                its role: the calls of PROCESS_CALLS, and nothing else
    a client (the command line)                   its own

A role also has the prefixes of the keys that it writes in the metadata store. Only the broker writes elsewhere, and
the records of security are not served at all (metadata_calls.py). While security is off, everything is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from icestream import errors
from icestream.broker.guarded_broker import GuardedBroker
from icestream.catalog import catalog_keys
from icestream.metadata import command as cmd
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.principal import Principal
from icestream.security.resource import CLUSTER

LAKE: Final = "lake"
PIPELINE: Final = "pipeline"
_READS: Final = ("metadata_get", "metadata_list", "metadata_revision", "metadata_watch", "metadata_unwatch")
_METADATA: Final = frozenset((*_READS, "metadata_submit", "metadata_renew"))
_FENCE: Final = frozenset(("fence_terms", "fence_report"))
_BACKUP: Final = (
    "backup_node",
    "backup_hold",
    "backup_cut",
    "backup_tail",
    "backup_tables",
    "backup_pin",
    "backup_unpin",
    "backup_unpin_all",
    "backup_numbers",
    "backup_freeze",
    "backup_part",
    "backup_end",
    "backup_options",
)
_RESTORE: Final = (
    "restore_begin",
    "restore_schemas",
    "restore_producers",
    "restore_sessions",
    "restore_accounts",
    "restore_finish",
    "restore_erased",
    "restore_live",
    "restore_allocate",
    "restore_topic",
    "restore_end",
)
_ARCHIVE: Final = ("archive_mark", "archive_read", "archive_changes", "archive_freeze", "archive_part")
# For clients of the HTTP ports of a process.
_SESSIONS: Final = frozenset(("security_open_session", "security_close_session", "security_decide"))
PROCESS_CALLS: Final[Mapping[str, frozenset[str]]] = {
    LAKE: _METADATA | _FENCE | _SESSIONS | {"scan_serve", "scan_answer", "scan_failed", "pipeline_reopen"},
    PIPELINE: _METADATA
    | _FENCE
    | _SESSIONS
    | frozenset(_BACKUP)
    | frozenset(_ARCHIVE)
    | {
        "pipeline_backlog",
        "pipeline_lease",
        "pipeline_committed",
        "pipeline_reopen",
        "pipeline_consumed",
        "pipeline_state",
        "pipeline_name",
        "pipeline_next_erasure",
        "pipeline_report_erasure",
        "pipeline_retire_log",
        "pipeline_retained_places",
        "pipeline_forget_retained",
    },
}
# What a client needs on the cluster. Of the calls of processes it may make those that only show, and ask for a commit.
CLUSTER_RIGHTS: Final[Mapping[str, Action]] = {
    **dict.fromkeys(("inspect_wal", "page_wal_files", "list_settings", "describe_setting", "health"), Action.DESCRIBE),
    **dict.fromkeys(("set_setting", "unset_setting"), Action.ADMIN),
    **dict.fromkeys(("cluster_status", "cluster_verify"), Action.DESCRIBE),
    **dict.fromkeys(("cluster_add", "cluster_promote", "cluster_remove", "cluster_transfer"), Action.ADMIN),
    **dict.fromkeys(("cluster_join_token", "cluster_snapshot"), Action.ADMIN),
    **dict.fromkeys(_READS, Action.ADMIN),
    "metadata_submit": Action.MAINTAIN,
    "pipeline_backlog": Action.DESCRIBE,
    "pipeline_state": Action.DESCRIBE,
    **dict.fromkeys(_BACKUP, Action.BACKUP),
    # The state of the metadata store has the hashes of passwords: `read` on the cluster, which implies backup, is not
    # enough for it.
    **dict.fromkeys(("backup_freeze", "backup_part"), Action.ADMIN),
    # A mark moves what is held, and the changes have what the state has.
    **dict.fromkeys(_ARCHIVE, Action.ADMIN),
    **dict.fromkeys(_RESTORE, Action.ADMIN),
}
# Decided by the process at the other end of the socket: forwarded, it would lend its own account to its client.
UNFORWARDED_CALLS: Final = frozenset(("security_recover",))
OPEN_CALLS: Final = frozenset(("ports", "places"))
_CATALOG: Final = (catalog_keys.ROOT, catalog_keys.RETIRED, catalog_keys.MARKS)
# What commands ask of the driver: commit-now, and maintenance of tables.
_REQUESTS: Final = ("/pipeline/commit_now", "/pipeline/maintenance")
_WRITABLE: Final[Mapping[str, tuple[str, ...]]] = {
    LAKE: (*_CATALOG, catalog_keys.FOREIGN_TABLES, *_REQUESTS),
    PIPELINE: (
        *_CATALOG,
        catalog_keys.FOREIGN_TABLES,
        catalog_keys.LEASE,
        catalog_keys.RETENTION,
        catalog_keys.RETENTION_CLOCK,
        *_REQUESTS,
        f"{cmd.COUNTERS}pipeline-epoch",
    ),
}


def admit_call(method: str, own: GuardedBroker, client: GuardedBroker | None) -> GuardedBroker:
    """The broker for a call: `own` is that of the connection, `client` that of the session which the call names.

    Raises PermissionDenied, Unauthenticated.
    """
    caller = own if client is None else client
    if own.session.is_unrestricted:
        return caller
    principal = own.session.identity.principal
    if principal.is_internal:
        if method in PROCESS_CALLS.get(principal.name, ()):
            return caller
        if client is None:
            raise errors.PermissionDenied(
                f"{principal} may not call {method} without the session of a client", hint="forward its session"
            )
    if client is not None and client.session.closed is not None:
        raise client.session.closed  # also for calls that ask for no right, such as security_whoami
    if method in UNFORWARDED_CALLS and client is not None:
        raise errors.PermissionDenied(f"{method} is not forwarded", hint="run it on the broker's machine")
    if method in CLUSTER_RIGHTS:
        caller.session.require(CLUSTER_RIGHTS[method], CLUSTER)
    elif any(method in calls for calls in PROCESS_CALLS.values()):
        raise errors.PermissionDenied(
            f"{caller.session.identity.principal} may not call {method}: it is for processes of the node",
            hint="use the command or the route that does it",
        )
    return caller


def check_written_keys(session: AccessSession, command: cmd.Command) -> None:
    """Raises PermissionDenied for a command that writes a key which is not for the role of the session."""
    if session.is_unrestricted:
        return
    prefixes = writable_prefixes(session.identity.principal)
    for key in written_keys(command):
        if not key.startswith(prefixes):
            raise errors.PermissionDenied(
                f"{session.identity.principal} may not write {key[:200]!r} in the metadata store",
                hint="only the broker writes it",
            )


def writable_prefixes(principal: Principal) -> tuple[str, ...]:
    return _WRITABLE.get(principal.name, ()) if principal.is_internal else _REQUESTS


def written_keys(command: cmd.Command) -> Iterator[str]:
    """The keys that a command may write; of a prefix that it deletes, the prefix."""
    match command:
        case cmd.Txn(_, then, otherwise):
            for operation in (*then, *otherwise):
                yield from written_keys(operation)
        case cmd.CompareAndSwap(compare):
            yield compare.key
        case cmd.DeletePrefix(prefix):
            yield prefix
        case cmd.ExpireTtlKeys(keys):
            yield from (key for key, _ in keys)
        case cmd.AllocateMonotonicId(counter):
            yield f"{cmd.COUNTERS}{counter}"
        case cmd.TakeSnapshot():
            yield ""
        case _:
            yield command.key
