"""Tables in an Iceberg catalog, as a reader finds them that is not this project's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table


#: The catalog of a sink for which none is configured, below its path.
CATALOG_FILE, CATALOG_NAME = "iceberg_catalog.db", "iceberg"


def find_in_catalog(folder: Path) -> Table | None:
    """Load the table in a folder from the catalog file in a folder above, if both are there."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    for above in folder.parents:
        file = above / CATALOG_FILE
        if file.is_file():
            catalog = SqlCatalog(CATALOG_NAME, uri=f"sqlite:///{file}", init_catalog_tables="false")
            try:
                return catalog.load_table(folder.relative_to(above).parts)
            except NoSuchTableError:
                return None
            finally:
                catalog.close()
    return None


@dataclass(frozen=True)
class CatalogPlace:
    """A place in a catalog: a :class:`tests.support.oracle.Remote`.

    :param address: of the catalog.
    :param path: namespace and name of a table, or the beginning of that, with slashes.
    :param kind: its type: ``rest`` or ``sql``.
    """

    address: str
    path: str = ""
    kind: str = "rest"

    def uri(self) -> str:
        """Catalog and path."""
        return f"{self.address}/{self.path}"

    @property
    def options(self) -> Mapping[str, str]:
        """The catalog, as pyiceberg describes it."""
        return {"type": self.kind, "uri": self.address}

    @property
    def name(self) -> str:
        """Namespace and name with dots."""
        return self.path.replace("/", ".")

    def under(self, path: str) -> CatalogPlace:
        """A place below."""
        return replace(self, path=f"{self.path}/{path}".lstrip("/"))

    def load(self) -> Table | None:
        """Load the table from the catalog, if it is there."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return load_catalog(CATALOG_NAME, **self.options).load_table(tuple(self.path.split("/")))
        except NoSuchTableError:
            return None
