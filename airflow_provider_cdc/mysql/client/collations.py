"""The collations of a server. Its table maps identify a column's character set by the number of a collation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import query_rows

_NO_SUCH_COLUMN = 1054


@dataclass(frozen=True)
class Collations:
    """The meaning of the collation numbers in table maps.

    :param charsets: collation number -> character set.
    :param mariadb: whether the server is MariaDB, whose table maps list collations for other columns than MySQL's.
    """

    charsets: Mapping[int, str]
    mariadb: bool = False

    def charset_of(self, number: int) -> str:
        """Return the character set of a collation. For an unknown number, it is a text that differs from every name."""
        return self.charsets.get(number) or f"that of collation {number}, which is not known"


#: For readers that decode no row of a captured table: every collation is unknown, and differs from the definition.
NO_COLLATIONS = Collations({})

_collations_cache: dict[tuple[str, str], Collations] = {}


def canonical_charset(charset: str) -> str:
    """Return the canonical name of a character set: servers use two names for utf8mb3."""
    return "utf8mb3" if charset == "utf8" else charset


def collations_of(connection: Connection[Any], server: str) -> Collations:
    """Return the collations of a server, which are queried once per process and server.

    :param server: identity of the server.
    """
    key = server, str(connection.get_server_info())  # type: ignore[no-untyped-call]
    if key not in _collations_cache:
        _collations_cache[key] = Collations(_query_charsets(connection), is_mariadb(connection))
    return _collations_cache[key]


def _query_charsets(connection: Connection[Any]) -> dict[int, str]:
    collations = query_rows(
        connection, "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
    )
    if is_mariadb(connection):
        try:  # one name there covers collations of several character sets
            collations += query_rows(
                connection,
                "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
            )
        except TerminalError as error:
            if error.code != _NO_SUCH_COLUMN:  # there are no such collations before 10.10
                raise
    return {int(number): canonical_charset(charset) for number, charset in collations if number and charset}
