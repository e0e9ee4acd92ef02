"""A broker with its lake process and catalog, as other engines meet it, and those of them that need no Java."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.lake_run import LakeRun

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyiceberg.catalog.rest import RestCatalog

NUMBERS = count(1)


class Lakehouse:
    def __init__(self, folder: Path, root: Path) -> None:
        """`root`: where tables may lie besides the warehouse."""
        self.folder = folder
        self._run = LakeRun(folder / "data", "--set", f"lake.table_roots=file:{root}")
        self._closed_later: list[RestCatalog] = []
        with self._run.process.killed_on_failure():
            self._run.until_api()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._run.lake_port}"

    @property
    def port(self) -> int:
        return self._run.lake_port

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def warehouse(self) -> Path:
        return self.data_dir / "warehouse"

    def __enter__(self) -> Lakehouse:
        return self

    def __exit__(self, *_: object) -> None:
        for resource in self._closed_later:
            resource.close()
        self._run.__exit__()

    @contextmanager
    def duckdb(self) -> Iterator[DuckDBPyConnection]:
        """With the catalog as `ice`."""
        with duckdb_with_iceberg() as connection:
            connection.sql(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{self.uri}', AUTHORIZATION_TYPE 'none')")
            yield connection

    def pyiceberg(self) -> RestCatalog:
        """Closed with the lakehouse: an open connection would be a warning in whatever test comes then."""
        from pyiceberg.catalog.rest import RestCatalog

        self._closed_later.append(catalog := RestCatalog("ice", uri=self.uri))
        return catalog


@contextmanager
def duckdb_with_iceberg() -> Iterator[DuckDBPyConnection]:
    """A DuckDB connection; its extensions are Python packages, so nothing is fetched."""
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        for name in ("avro", "httpfs", "iceberg"):
            connection.load_extension(str(extension(name)))
        yield connection


def extension(name: str) -> Path:
    """Of DuckDB, from a Python package."""
    import duckdb

    package = find_spec(f"duckdb_extension_{name}")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"


def new_name(prefix: str = "ns") -> str:
    """A name that no other test has."""
    return f"{prefix}{next(NUMBERS)}"
