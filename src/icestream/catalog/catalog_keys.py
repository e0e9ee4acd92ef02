"""Keys of the catalog's records in the metadata store.

    /catalog/namespaces/{levels above}:{level}       CatalogNamespaceRecord
    /catalog/relations/{levels}:{name}               TableRecord or ViewRecord: one key for both, so that a table and a
                                                     view never share a name
    /catalog/topics/{topic id}                       TopicTableRecord: the table of a topic
    /catalog/bound/{table uuid}                      BoundRecord: the topic of a table
    /catalog/parted/{topic id}                       DetachedRecord: the former table of a topic that has none
    /catalog/deleted_topics/{topic id}               DeletedTableRecord: the table of a deleted topic, until it is
                                                     detached or dropped (topic_bindings.py, hazard 49)
    /catalog/former/{topic id}                       DetachedRecord of a deleted topic, while the topic can come back,
                                                     with a time to live
    /catalog/requests/{idempotency key}              RequestRecord, with a time to live
    /catalog/purges/{table uuid}                     PurgeRecord: a dropped table whose files are to be removed
    /catalog/retained/{topic id}                     RetainedRecord: the first kept offsets of a topic; they only rise
    /catalog/erased/{topic id}                       ErasedRecord (topic_rules/erased_record.py): the erased offsets of
                                                     a topic; they only become more
    /catalog/places                                  written again with each change that chooses where a table or a
                                                     namespace lies: its revision orders them (table_places.py)
    /holds/{table uuid}/{holder}                     HoldRecord: a backup needs snapshots of it (catalog_holds.py)
    /retired/{table uuid}/{slot}                     RetiredFilesRecord: metadata files that a commit retired, at slot
                                                     version % CATALOG_RETIRED_SLOTS
    /condemned/generation                            written with each change of condemned files (condemned_files.py)
    /condemned/files/{table uuid}/{number}           CondemnedRecord: files of a table that are about to be removed
    /consumers/{topic id}                            empty: its revision is the consumer generation of a topic that
                                                     keeps what is not consumed. A broker writes it before a consumer
                                                     is created, or moved back (broker/consumed_offsets.py)
    /snapshots/{topic id}/open, /{slot}              blocks of snapshot marks (snapshot_map.py)
    /pipeline/lease                                  LeaseRecord, written by the pipeline of a single node
    /pipeline/lease/{node}                           the same, for each node of a cluster
    /pipeline/tables/{topic id}                      the table of a topic in another catalog (catalogs/mirror.py)
    /pipeline/retention/{topic id}                   RetentionIndex: which offsets were committed when
    /pipeline/retention_clock/{node}                 RetentionClockRecord: the last time at which retention looked
    /pipeline/structures/{topic id}                  the learned structure of a topic's MQTT topics
                                                     (mqtt/learned_structure.py)

Retired files and marks are not below /catalog/, so that a watch of the catalog is not notified of each of them.

`{levels}` is each level followed by `/`. In levels and names `%`, `/` and `:` are escaped. So what is directly in a
namespace, and only that, lies below one prefix, in the order of names, whatever lies deeper.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from icestream import errors, limits
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.values import short_repr
from icestream.metadata.bounds import key_bytes

ROOT: Final = "/catalog/"
RELATIONS: Final = f"{ROOT}relations/"
NAMESPACES: Final = f"{ROOT}namespaces/"
PURGES: Final = f"{ROOT}purges/"
PLACES: Final = f"{ROOT}places"
TOPICS: Final = f"{ROOT}topics/"
BOUND: Final = f"{ROOT}bound/"
DETACHED: Final = f"{ROOT}parted/"
FORMER: Final = f"{ROOT}former/"
DELETED_TOPICS: Final = f"{ROOT}deleted_topics/"
RETAINED: Final = f"{ROOT}retained/"
ERASED: Final = f"{ROOT}erased/"
RETIRED: Final = "/retired/"
CONSUMERS: Final = "/consumers/"
HOLDS: Final = "/holds/"
CONDEMNED_GENERATION: Final = "/condemned/generation"
CONDEMNED_FILES: Final = "/condemned/files/"
MARKS: Final = "/snapshots/"
FOREIGN_TABLES: Final = "/pipeline/tables/"
STRUCTURES: Final = "/pipeline/structures/"
LEASE: Final = "/pipeline/lease"
RETENTION: Final = "/pipeline/retention/"
RETENTION_CLOCK: Final = "/pipeline/retention_clock/"
_ESCAPED: Final = str.maketrans({"%": "%25", "/": "%2F", ":": "%3A"})


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def namespaces_in(parent: Namespace) -> str:
    """Returns the prefix of the namespaces directly in `parent`; () is the root."""
    return f"{NAMESPACES}{_levels(parent)}:"


def relations_in(namespace: Namespace) -> str:
    return f"{RELATIONS}{_levels(namespace)}:"


def _levels(levels: Namespace) -> str:
    return "".join(f"{_escape(level)}/" for level in levels)


def namespace_key(namespace: Namespace) -> str:
    return _check_length(namespaces_in(namespace[:-1]) + _escape(namespace[-1]))


@lru_cache(4096)
def relation_key(identifier: Identifier) -> str:
    return _check_length(relations_in(identifier.namespace) + _escape(identifier.name))


def identifier_of(key: str) -> Identifier:
    """Returns the identifier of the table or view at this key."""
    levels, _, name = key.removeprefix(RELATIONS).rpartition(":")
    return Identifier(tuple(unquote(level) for level in levels.split("/")[:-1]), unquote(name))


def namespace_of(key: str) -> Namespace:
    """Returns the namespace at this key."""
    levels, _, name = key.removeprefix(NAMESPACES).rpartition(":")
    return (*(unquote(level) for level in levels.split("/")[:-1]), unquote(name))


def _check_length(key: str) -> str:
    if key_bytes(key) > limits.METADATA_KEY_BYTES_MAX:
        raise errors.InvalidInput(
            f"name and namespace are too long: {key_bytes(key)} bytes, limit {limits.METADATA_KEY_BYTES_MAX}",
            hint="use fewer or shorter levels",
        )
    return key


def last_name(prefix: str, key: str) -> str:
    """Returns the level or name at the end of a key below a prefix."""
    return unquote(key.removeprefix(prefix))


def topic_key(topic_id: int) -> str:
    return f"{TOPICS}{topic_id}"


def deleted_topic_key(topic_id: int) -> str:
    return f"{DELETED_TOPICS}{topic_id}"


def detached_key(topic_id: int) -> str:
    return f"{DETACHED}{topic_id}"


def former_key(topic_id: int) -> str:
    return f"{FORMER}{topic_id}"


def bound_key(uuid: str) -> str:
    return f"{BOUND}{uuid.lower()}"


def foreign_table_key(topic_id: int) -> str:
    return f"{FOREIGN_TABLES}{topic_id}"


def retained_key(topic_id: int) -> str:
    return f"{RETAINED}{topic_id}"


def erased_key(topic_id: int) -> str:
    return f"{ERASED}{topic_id}"


def consumers_key(topic_id: int) -> str:
    return f"{CONSUMERS}{topic_id}"


def retention_key(topic_id: int) -> str:
    return f"{RETENTION}{topic_id}"


def retention_clock_key(lease_name: str) -> str:
    """`lease_name`: of the driver that writes it; empty for a single node."""
    return f"{RETENTION_CLOCK}{lease_name}"


def structure_key(topic_id: int) -> str:
    return f"{STRUCTURES}{topic_id}"


def retired_key(uuid: str, version: int) -> str:
    """Slots bound the records of a table: one that commits too often for the clean-up overwrites its oldest."""
    return f"{RETIRED}{uuid.lower()}/{version % limits.CATALOG_RETIRED_SLOTS}"


def marks_prefix(topic_id: int) -> str:
    return f"{MARKS}{topic_id}/"


def open_marks_key(topic_id: int) -> str:
    return f"{marks_prefix(topic_id)}open"


def marks_key(topic_id: int, number: int) -> str:
    return f"{marks_prefix(topic_id)}{number % limits.SNAPSHOT_BLOCKS_MAX}"


def request_key(request_id: str) -> str:
    return f"{ROOT}requests/{request_id.lower()}"


def purge_key(uuid: str) -> str:
    return f"{PURGES}{uuid.lower()}"


# --- pages ------------------------------------------------------------------------------------------------------------


def page_token(name: str) -> str:
    """Returns the token of the page that begins after this name, whatever is created or dropped meanwhile."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def key_after(prefix: str, token: str) -> str:
    """Returns the key after which the page of a token begins; an empty token is the first page."""
    return prefix + _escape(name_of_token(token)) if token else ""


def name_of_token(token: str) -> str:
    """Returns the name behind which the page of a token begins. Raises InvalidInput."""
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise errors.InvalidInput(f"invalid page token: {short_repr(token)}") from None


def lease_key(name: str) -> str:
    """`name`: the id of a node of a cluster; empty for a single node."""
    return f"{LEASE}/{name}" if name else LEASE
