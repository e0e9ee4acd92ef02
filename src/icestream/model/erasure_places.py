"""Every place where bytes of messages may be, and what an erasure does about it (hazard 97): one table. Pure.

A place is searched, erased and checked by code of ours, or it is `not_covered`, with the reason and what its owner can
do: every report of an erasure says it. A directory of a node and a prefix of the metadata store belong to a place, or
are listed as without bytes of messages; a new one that is neither fails the build (tests/tidy/test_erasure_places.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ErasurePlace(NamedTuple):
    """`search`, `erase` and `check`: the module that does it; empty: what another column says is enough."""

    name: str  # as docs/table-care.md has it
    search: str = ""
    erase: str = ""
    check: str = ""
    not_covered: str = ""
    directories: tuple[str, ...] = ()  # below `data_dir`
    keys: tuple[str, ...] = ()  # prefixes in the metadata store


_JOB: Final = "pipeline/erasure/erasure_job.py"
_TASK: Final = "pipeline/erasure/erase_task.py"
PLACES: Final = (
    ErasurePlace("the current table", _TASK, _TASK, _JOB, directories=("warehouse",)),
    ErasurePlace("older snapshots, tags, branches", _TASK, "pipeline/erasure/history_rewrite.py", _JOB),
    ErasurePlace("bounds of removed files in manifests, statistics", "", "pipeline/erasure/history_rewrite.py", _JOB),
    ErasurePlace("delete files by value", _TASK, "pipeline/commit/rewrite_draft.py", _JOB),
    ErasurePlace("files that no snapshot names", _TASK, "pipeline/file_cleanup/cleaner.py", _JOB),
    ErasurePlace(
        "log, spares, spill log", "", "wal/write_ahead_log.py", "broker/erasure_service.py", directories=("wal",)
    ),
    ErasurePlace(
        "hot tail, read-ahead, prefetched replies", "", "broker/iceberg_storage.py", "broker/followed_offsets.py"
    ),
    ErasurePlace("retained messages of MQTT", "durable/retained.py", "broker/mqtt/retained_log.py", _JOB),
    ErasurePlace(
        "backups, archives, exports",
        not_covered="backups, archives and exports that were made before: list them with `icestream backup list`, and "
        "delete those that have the messages; a restore leaves the messages out, unless it is told to bring them back",
        keys=("/holds/",),
    ),
    ErasurePlace(
        "dead letters and other copies in topics",
        not_covered="copies in other topics, such as dead letters (`--dead-letters` does the same there) and messages "
        "that a consumer published again: erase them there",
    ),
    ErasurePlace(
        "deleted topics that can come back",
        not_covered="deleted topics that can come back, also those that a restore in place replaced: `icestream topic "
        "deleted` lists them, undelete brings the messages back",
    ),
    ErasurePlace(
        "sessions of MQTT",
        not_covered="names of topics in the state of MQTT sessions, where a message is on its way to a client, and "
        "wills of clients: `icestream mqtt sessions` lists them, they go with acks and with their sessions",
    ),
    ErasurePlace(
        "nodes that were removed from the cluster",
        not_covered="data directories of nodes that were removed from the cluster, with topics that another node took "
        "over (`icestream topic takeover`): remove them",
    ),
    ErasurePlace(
        "what consumers and engines have read",
        not_covered="what consumers, engines and their caches have read before, and files of engines outside of the "
        "table's folder",
    ),
    ErasurePlace(
        "memory, swap, snapshots of disks, object versions",
        not_covered="memory of running processes, swap space, file system journals, snapshots of disks and versions of "
        "an object store",
    ),
)
NOT_COVERED: Final = tuple(place.not_covered for place in PLACES if place.not_covered)

# What has no bytes of messages, and why.
DIRECTORIES_WITHOUT_MESSAGES: Final = {
    "raft": "records of the metadata store: names, offsets, settings",
    "security": "secrets of processes",
    "erasure.key": "the key of reports",
    "broker.sock": "a socket",
}
KEYS_WITHOUT_MESSAGES: Final = {
    "/catalog/": "names, locations and offsets of tables; erased offsets",
    "/cluster/": "nodes",
    "/condemned/": "names of files",
    "/config/": "settings",
    "/consumers/": "generations and names of consumers",
    "/counters/": "numbers",
    "/danube/": "names and ids of clients",
    "/deleted_topics/": "names",
    "/erasures/": "reports with a keyed hash in place of the predicate; boundaries of logs",
    "/mqtt/": "routes and offsets",
    "/namespaces/": "names and policies",
    "/node_logs/": "ids of logs",
    "/persistent_storage/": "cursors: offsets",
    "/pipeline/": "leases, requests, offsets, learned columns",
    "/planned_subscriptions/": "names",
    "/producers/": "names and sequence numbers of producers",
    "/restored_names/": "names",
    "/restores/": "states of restores",
    "/retired/": "names of files",
    "/schemas/": "schemas",
    "/security/": "accounts, grants and keys",
    "/snapshots/": "offsets of snapshots",
    "/subscriptions/": "names and policies",
    "/system/": "names of topics of the broker; their messages are in its log, as those of all topics",
    "/tombstone_names/": "names",
    "/tombstones/": "names, offsets and policies of deleted topics",
    "/topics/": "names and policies",
}
