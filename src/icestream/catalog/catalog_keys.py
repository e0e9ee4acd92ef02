"""Where the catalog keeps what in the metadata store.

    /catalog/namespaces/{levels above}:{level}       NamespaceRecord
    /catalog/relations/{levels}:{name}               TableRecord or ViewRecord: one key for both, so that a table and a
                                                     view never have one name
    /catalog/topics/{topic id}                       TopicRecord: the table of a topic
    /catalog/bound/{table uuid}                      BoundRecord: the topic of a table
    /catalog/parted/{topic id}                       PartedRecord: the table that a topic had, until it has one again
    /catalog/deleted_topics/{topic id}               LetGoRecord: the table of a topic that was deleted, until they are
                                                     parted; written by the broker, as a deletion ends (hazard 49)
    /catalog/requests/{idempotency key}              RequestRecord, for a while
    /catalog/purges/{table uuid}                     PurgeRecord: files of a dropped table that are to go
    /snapshots/{topic id}/open, /{slot}              blocks of marks: what snapshots held (snapshot_map.py); beside the
                                                     others, so that who watches these is not told of each of them
    /pipeline/lease                                  LeaseRecord, written by the pipeline of a node on its own
    /pipeline/lease/{node}                           the same, by that of each node of a cluster

`{levels}` is each level followed by `/`. In levels and names `%`, `/` and `:` are escaped. So what is directly in a
namespace, and only that, lies below one prefix, in the order of its names, whatever lies deeper.
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
PURGES: Final = f"{ROOT}purges/"
TOPICS: Final = f"{ROOT}topics/"
BOUND: Final = f"{ROOT}bound/"
PARTED: Final = f"{ROOT}parted/"
DELETED_TOPICS: Final = f"{ROOT}deleted_topics/"
MARKS: Final = "/snapshots/"
LEASE: Final = "/pipeline/lease"
_ESCAPED: Final = str.maketrans({"%": "%25", "/": "%2F", ":": "%3A"})


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def namespaces_in(parent: Namespace) -> str:
    """The prefix of the namespaces directly in another; () is the root."""
    return f"{ROOT}namespaces/{_levels(parent)}:"


def relations_in(namespace: Namespace) -> str:
    return f"{RELATIONS}{_levels(namespace)}:"


def _levels(levels: Namespace) -> str:
    return "".join(f"{_escape(level)}/" for level in levels)


def namespace_key(namespace: Namespace) -> str:
    return _fitting(namespaces_in(namespace[:-1]) + _escape(namespace[-1]))


@lru_cache(4096)
def relation_key(identifier: Identifier) -> str:
    return _fitting(relations_in(identifier.namespace) + _escape(identifier.name))


def identifier_of(key: str) -> Identifier:
    """Of the table or view under this key."""
    levels, _, name = key.removeprefix(RELATIONS).rpartition(":")
    return Identifier(tuple(unquote(level) for level in levels.split("/")[:-1]), unquote(name))


def _fitting(key: str) -> str:
    if key_bytes(key) > limits.METADATA_KEY_BYTES_MAX:
        raise errors.InvalidInput("a name that is too long, with its namespace", hint="use fewer or shorter levels")
    return key


def last_name(prefix: str, key: str) -> str:
    """The level or name at the end of a key below a prefix."""
    return unquote(key.removeprefix(prefix))


def topic_key(topic_id: int) -> str:
    return f"{TOPICS}{topic_id}"


def deleted_topic_key(topic_id: int) -> str:
    return f"{DELETED_TOPICS}{topic_id}"


def parted_key(topic_id: int) -> str:
    return f"{PARTED}{topic_id}"


def bound_key(uuid: str) -> str:
    return f"{BOUND}{uuid.lower()}"


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
    """Where the next page begins: behind this name, whatever comes or goes meanwhile."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def key_after(prefix: str, token: str) -> str:
    """The key behind which a page begins; an empty token is the first page."""
    if not token:
        return ""
    try:
        name = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise errors.InvalidInput(f"not a page token: {short_repr(token)}") from None
    return prefix + _escape(name)


def lease_key(name: str) -> str:
    """`name`: the id of a node of a cluster; empty for a node on its own."""
    return f"{LEASE}/{name}" if name else LEASE
