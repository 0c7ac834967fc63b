"""What happens to the values of a column on their way from the source to the copy, and which columns the copy adds.

This module imports nothing heavy, because settings are checked with it.
"""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from airflow_provider_cdc.model.json_record import JsonRecord

#: What a policy does with values: ``KEEP`` copies them, perhaps under another name.
KEEP, HASH, MASK, TRUNCATE, NULL = ACTIONS = ("keep", "hash", "mask", "truncate", "null")
#: The word of the configuration for a column that the copy does not have. It is no policy of a column of the copy.
EXCLUDE = "exclude"
#: Forms of a hash: 64 lower-case hexadecimal digits, or 32 bytes.
HEX, BINARY = ENCODINGS = ("hex", "binary")
HEX_DIGITS, HASH_BYTES = 64, 32

#: Columns that a copy may have besides, by the name of the setting: where a row's last change was in the source.
METADATA_COLUMNS = {
    "database": "_cdc_database",
    "table": "_cdc_table",
    "server": "_cdc_server",
    "file": "_cdc_file",
    "position": "_cdc_pos",
    "gtid": "_cdc_gtid",
}


#: Column of a copy of several tables: the ``database.table`` that a row comes from.
SOURCE_COLUMN = "_cdc_source"
#: How rows of such a copy are identified: by this column and the key, or by the key alone.
KEY_WITH_SOURCE, UNIQUE_KEY = "source", "unique"


class ColumnPolicy(JsonRecord, frozen=True):
    """The policy of one column. NULL stays NULL, whatever the policy.

    :param column: name of the column in the source.
    :param action: one of :data:`ACTIONS`.
    :param new_name: name of the column in the copy; ``None`` for the same name.
    :param encoding: for ``hash``: one of :data:`ENCODINGS`.
    :param key_id: for ``hash``: identifies the secret key without revealing it, so that another key is noticed.
    :param length: for ``mask``: number of characters at the end that stay (0 for none); for ``truncate``: number of
        characters (bytes of a binary column) at the beginning that stay.
    """

    column: str
    action: str = KEEP
    new_name: str | None = None
    encoding: str = HEX
    key_id: str | None = None
    length: int = 0

    @property
    def copy_name(self) -> str:
        """Name of the column in the copy."""
        return self.new_name or self.column


class _Definition(Protocol):
    """The part of :class:`~airflow_provider_cdc.model.schema.Column` that :func:`copy_column` needs.

    The module of that class may import this one, and so cannot be imported here.
    """

    @property
    def data_type(self) -> str: ...
    @property
    def members(self) -> tuple[str, ...]: ...
    def replace(self, **changes: Any) -> Self: ...


_ColumnT = TypeVar("_ColumnT", bound=_Definition)


def copy_column(column: _ColumnT, policy: ColumnPolicy) -> _ColumnT:
    """Return the definition of the column in the copy.

    A hash is a ``char(64)`` in ASCII or a ``binary(32)``, and may be NULL if the source may. A masked or truncated
    column keeps its type, but ENUM and SET become ``varchar``, because the values are no members any more.

    :param column: the column of the source.
    :param policy: its policy, which the type of the column allows.
    """
    column = column.replace(name=policy.copy_name)
    if policy.action == HASH:
        is_hex = policy.encoding == HEX
        kind, size = ("char", HEX_DIGITS) if is_hex else ("binary", HASH_BYTES)
        return column.replace(
            data_type=kind,
            column_type=f"{kind}({size})",
            length=size,
            octets=size,
            charset="ascii" if is_hex else None,
            collation="ascii_bin" if is_hex else None,
            precision=None,
            scale=None,
            fsp=0,
            members=(),
        )
    if policy.action == NULL:
        return column.replace(nullable=True)
    if policy.action in (MASK, TRUNCATE) and column.data_type in ("enum", "set"):
        lengths = [len(member) for member in column.members] or [0]
        # All members of a SET, with commas between them.
        longest = max(lengths) if column.data_type == "enum" else sum(lengths) + len(lengths) - 1
        return column.replace(
            data_type="varchar",
            column_type=f"varchar({longest})",
            length=longest,
            octets=4 * longest,
            members=(),
        )
    return column
