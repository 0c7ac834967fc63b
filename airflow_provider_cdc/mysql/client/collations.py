"""The collations of a server: its table maps name the character set of a column by the number of a collation."""

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
    """What table maps mean by the numbers of collations.

    :param charsets: character set of each collation, by its number.
    :param mariadb: whether the server is MariaDB: which columns its table maps list with a collation differs.
    """

    charsets: Mapping[int, str]
    mariadb: bool = False

    def charset_of(self, number: int) -> str:
        """The character set of a collation, in words that differ from every name where the number is not known."""
        return self.charsets.get(number) or f"that of collation {number}, which is not known"


#: For readers that look at no row of a captured table: every collation is unknown, and differs from the definition.
NO_COLLATIONS = Collations({})

_collations_cache: dict[tuple[str, str], Collations] = {}


def canonical_charset(charset: str) -> str:
    """The name of a character set, of which servers and older plans write one in two ways."""
    return "utf8mb3" if charset == "utf8" else charset


def collations_of(connection: Connection[Any], server: str) -> Collations:
    """The collations of a server; a process asks each server once.

    :param server: its identity.
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
        try:  # one name stands for a collation of each of several character sets there
            collations += query_rows(
                connection,
                "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
            )
        except TerminalError as error:
            if error.code != _NO_SUCH_COLUMN:  # before 10.10 there are no such collations
                raise
    return {int(number): canonical_charset(charset) for number, charset in collations if number and charset}
