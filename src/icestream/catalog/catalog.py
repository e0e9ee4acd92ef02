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
from icestream.catalog.calls.commits import Commits
from icestream.catalog.calls.namespaces import Namespaces
from icestream.catalog.calls.relations import Relations
from icestream.catalog.calls.steps import Steps
from icestream.catalog.calls.tables import Tables
from icestream.catalog.calls.topics import Topics
from icestream.catalog.calls.views import Views
from icestream.catalog.documents import Documents
from icestream.catalog.upkeep.leftovers import Leftovers
from icestream.catalog.upkeep.named import Manifests
from icestream.catalog.upkeep.partings import Partings
from icestream.catalog.upkeep.purge import Purges
from icestream.catalog.upkeep.upkeep import Upkeep
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
        self._upkeep = (documents, files, steps.retired, roots, clock)
        relations = Relations(steps)
        self.namespaces = Namespaces(steps, roots[0])
        self.commits = Commits(steps, relations, roots)
        self.tables = Tables(steps, relations, self.commits, roots[0], roots)
        self.topics = Topics(steps, relations, self.commits, roots[0])
        self.views = Views(steps, relations, roots[0], roots)

    def upkeep(self, manifests: Manifests) -> Upkeep:
        """What goes on in the background, in one process of a node."""
        documents, files, retired, roots, clock = self._upkeep
        purges = Purges(self.store, documents, files, manifests, roots)
        partings = Partings(self.store, self.topics, self.tables)
        leftovers = Leftovers(self.store, documents, files)
        return Upkeep(self.store, documents, retired, partings, purges, leftovers, clock)
