"""What every read-only view of the whole lake answers; lake_views.py has their names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.namespace_operations import NamePage
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata
from icestream.security.action import Action

if TYPE_CHECKING:
    from icestream.lake.catalog_rights import CatalogRights  # its module imports that of requests, which names views


class LakeView(ABC):
    """A read-only view of the whole lake.

    `name`: its canonical name, which is the prefix of its routes. `shows_live_files`: its files are those of the live
    tables, so that keys for reading these may be given. `rights`, of methods: None while security is off.
    """

    name: str
    shows_live_files = False

    @abstractmethod
    async def require(self, catalog: Catalog, rights: CatalogRights, identifier: Identifier, *actions: Action) -> None:
        """Raises UnknownTable for a table that the caller may not see, PermissionDenied, Unauthenticated."""

    @abstractmethod
    async def load(self, catalog: Catalog, identifier: Identifier) -> tuple[str, TableMetadata]:
        """Returns a table in the view, and what identifies this version of it. Raises UnknownTable."""

    @abstractmethod
    async def list(
        self, catalog: Catalog, namespace: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        """Returns the names of the tables of a namespace that are in the view. Raises UnknownNamespace."""

    @abstractmethod
    async def list_namespaces(
        self, catalog: Catalog, parent: Namespace, token: str | None, size: int | None, rights: CatalogRights | None
    ) -> NamePage:
        """Returns the names of the namespaces directly in `parent`. Raises UnknownNamespace."""

    @abstractmethod
    async def load_namespace(self, catalog: Catalog, namespace: Namespace) -> dict[str, str]:
        """Returns the properties of a namespace. Raises UnknownNamespace."""
