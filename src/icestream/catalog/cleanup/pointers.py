"""Which metadata files are tables and views now, under whatever names: those never go.

One file may be registered under two names. What one of them lets go of, or takes for a left-over of its own, may be
what the other one points to.
"""

from __future__ import annotations

from icestream.catalog import catalog_keys, catalog_records
from icestream.iceberg.location import normalize
from icestream.metadata.store import MetadataStore


async def pointed_to(store: MetadataStore) -> set[str]:
    found: set[str] = set()
    after = ""
    while page := await store.list(catalog_keys.RELATIONS, after):
        after = page[-1][0]
        found.update(normalize(catalog_records.decode_relation(key, entry).location) for key, entry in page)
    return found
