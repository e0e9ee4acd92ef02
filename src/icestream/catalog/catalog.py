"""`Catalog`: the embedded Iceberg catalog, put together over a metadata store and a warehouse. It knows no HTTP; every
process with a client of the metadata store may have one, and all of them commit to the same tables.

    catalog_keys, catalog_records       what is stored where
    topic_rules                         what may be done to the table of a topic; pure
    plans                               entries that were read in, transactions out; pure
    transactions, documents             the thin shell: run a transaction until it is applied; metadata files
    operations                          what clients call: read, plan, write files, run
    topic_bindings                      which table belongs to which topic; what the deletion of a topic records
    cleanup                             removes files in the background, in the lake process
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import limits
from icestream.catalog.cleanup.catalog_cleanup import CatalogCleanup
from icestream.catalog.cleanup.deleted_topic_tables import DeletedTopicTables
from icestream.catalog.cleanup.file_references import ManifestSource
from icestream.catalog.cleanup.files_in_use import FilesInUseScan
from icestream.catalog.cleanup.orphan_metadata import OrphanMetadata
from icestream.catalog.cleanup.purge import Purges
from icestream.catalog.cleanup.retired_files import RetiredFiles
from icestream.catalog.documents import Documents
from icestream.catalog.operations.condemned_check import CondemnedCheck
from icestream.catalog.operations.file_changes import FileChangesReader
from icestream.catalog.operations.namespace_operations import NamespaceOperations
from icestream.catalog.operations.relation_lookup import RelationLookup
from icestream.catalog.operations.snapshot_paths import SnapshotPaths
from icestream.catalog.operations.table_commits import TableCommits
from icestream.catalog.operations.table_operations import TableOperations
from icestream.catalog.operations.table_places import TablePlaces
from icestream.catalog.operations.topic_operations import TopicOperations
from icestream.catalog.operations.view_operations import ViewOperations
from icestream.catalog.transactions import TransactionRunner
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.location import normalize
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import InlineOffload, Offload


class Catalog:
    """The embedded catalog. It has no state but caches: any number of processes may have one."""

    def __init__(
        self,
        store: MetadataStore,
        files: TableFiles,
        clock: Clock,
        randomness: Randomness,
        warehouse: str,
        other_roots: Sequence[str] = (),
        cache_bytes: int = limits.CATALOG_CACHE_BYTES_DEFAULT,
        offload: Offload | None = None,
    ) -> None:
        """`other_roots`: locations besides the warehouse where tables may lie. `offload`: decodes manifests beside the
        loop; None: on the loop, in tests."""
        roots = [normalize(root) for root in (warehouse, *other_roots)]
        documents = Documents(files, randomness, roots, cache_bytes)
        runner = TransactionRunner(store, documents, clock)
        self.store = store
        self.clock = clock
        self.warehouse = roots[0]
        self._files = files
        self._roots = roots
        self._runner = runner
        self.relations = relations = RelationLookup(runner)
        self.namespaces = NamespaceOperations(runner, roots[0])
        file_changes = FileChangesReader(documents, offload or InlineOffload())
        condemned = CondemnedCheck(store, documents, offload or InlineOffload())
        self.commits = TableCommits(runner, relations, file_changes, condemned, roots)
        self.tables = TableOperations(runner, relations, self.commits, condemned, roots[0], roots)
        self.topics = TopicOperations(runner, relations, self.commits, roots[0])
        self.views = ViewOperations(runner, relations, roots[0], roots)
        self.places = TablePlaces(store, documents, roots)
        self.snapshot_paths = SnapshotPaths(documents, offload or InlineOffload())

    def files_in_use(self, manifests: ManifestSource) -> FilesInUseScan:
        """Returns the look at all tables of the catalog that comes before files of one are removed."""
        return FilesInUseScan(self.store, self._runner.documents, manifests)

    def cleanup(self, manifests: ManifestSource) -> CatalogCleanup:
        """Returns the background clean-up. Only the lake process of a node runs it: one process removes files."""
        documents = self._runner.documents
        return CatalogCleanup(
            self.store,
            RetiredFiles(self.store, documents),
            DeletedTopicTables(self.store, self.topics, self.tables),
            Purges(self.store, documents, self._files, manifests, self._roots),
            OrphanMetadata(self.store, documents, self._files),
            self._runner.clock,
        )
