"""The server's version and character sets, which decide what a table definition leaves unspecified."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.ddl.token_cursor import ServerTraits
from airflow_provider_cdc.mysql.client.identity import product_of
from airflow_provider_cdc.mysql.client.session import query_rows, query_value

#: The MariaDB version that introduced collations for several character sets. Their full names begin with one of them.
_FULL_COLLATION_NAMES_SINCE = (10, 10)


def read_server_traits(connection: Connection[Any]) -> ServerTraits:
    """Read what :func:`airflow_provider_cdc.ddl.alter_table.apply_ddl` must know about a server.

    ``character_set_collations`` (MariaDB) is ignored, because it may differ between sessions.
    """
    product = product_of(connection)
    collations = query_rows(
        connection,
        "SELECT collation_name, character_set_name FROM information_schema.collations "
        "WHERE character_set_name IS NOT NULL",
    )
    if product.is_mariadb and product.version >= _FULL_COLLATION_NAMES_SINCE:
        collations += query_rows(
            connection,
            "SELECT full_collation_name, character_set_name "
            "FROM information_schema.collation_character_set_applicability",
        )
    charsets = query_rows(
        connection,
        "SELECT character_set_name, default_collate_name, maxlen FROM information_schema.character_sets",
    )
    return ServerTraits(
        mariadb=product.is_mariadb,
        version=product.version,
        default_collations=MappingProxyType({str(name): str(collation) for name, collation, _ in charsets}),
        charset_by_collation=MappingProxyType({str(collation): str(name) for collation, name in collations}),
        old_temporal_format=product.is_mariadb
        and query_value(connection, "SELECT @@global.mysql56_temporal_format") == "0",
        max_char_bytes=MappingProxyType({str(name): int(width or 1) for name, _, width in charsets}),
    )
