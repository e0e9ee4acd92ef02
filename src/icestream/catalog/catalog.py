"""The embedded catalog: its parts, put together over a metadata store and a warehouse. The routes of the lake process
call them; this package knows no HTTP.

    identifier, keys, records, location, metadata_file      names and forms
    document, table, view, topic                            documents and the rules about them; pure
    plan                                                    what was read in, transactions out; pure
    mover, files, fence, documents, requests, turns         the thin shell
    calls                                                   what clients ask: read, plan, write, move
    upkeep                                                  what goes in the background when nobody needs it any more
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.catalog.cleanup.catalog_cleanup import CatalogCleanup
from icestream.catalog.cleanup.deleted_topic_tables import DeletedTopicTables
from icestream.catalog.cleanup.file_references import ManifestSource
from icestream.catalog.cleanup.orphan_metadata import OrphanMetadata
from icestream.catalog.cleanup.purge import Purges
from icestream.catalog.documents import Documents
from icestream.catalog.operations.namespace_operations import NamespaceOperations
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.operations.table_commits import TableCommits
from icestream.catalog.operations.table_operations import TableOperations
from icestream.catalog.operations.topic_operations import TopicOperations
from icestream.catalog.operations.view_operations import ViewOperations
from icestream.catalog.transactions import Steps
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness


class Catalog:
    def __init__(
        self,
        store: MetadataStore,
        files: TableFiles,
        clock: Clock,
        randomness: Randomness,
        warehouse: str,
        other_roots: Sequence[str] = (),
        cache_bytes: int = limits.CATALOG_CACHE_BYTES_DEFAULT,
    ) -> None:
        """`other_roots`: where tables may lie besides the warehouse."""
        roots = [normalize(root) for root in (warehouse, *other_roots)]
        documents = Documents(files, randomness, roots, cache_bytes)
        steps = Steps(store, documents, clock)
        self.store = store
        self._cleanup_parts = (documents, files, steps.retired, roots, clock)
        relations = RelationLookup(steps)
        self.namespaces = NamespaceOperations(steps, roots[0])
        self.commits = TableCommits(steps, relations, roots)
        self.tables = TableOperations(steps, relations, self.commits, roots[0], roots)
        self.topics = TopicOperations(steps, relations, self.commits, roots[0])
        self.views = ViewOperations(steps, relations, roots[0], roots)

    def cleanup(self, manifests: ManifestSource) -> CatalogCleanup:
        """What goes on in the background, in one process of a node."""
        documents, files, retired, roots, clock = self._cleanup_parts
        purges = Purges(self.store, documents, files, manifests, roots)
        partings = DeletedTopicTables(self.store, self.topics, self.tables)
        leftovers = OrphanMetadata(self.store, documents, files)
        return CatalogCleanup(self.store, documents, retired, partings, purges, leftovers, clock)
