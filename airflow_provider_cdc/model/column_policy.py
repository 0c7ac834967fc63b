"""What happens to the values of a column on their way from the source to the copy."""

from __future__ import annotations

from airflow_provider_cdc.model.json_record import JsonRecord

#: What a policy does with values: ``KEEP`` copies them, perhaps under another name.
KEEP, HASH, MASK, TRUNCATE, NULL = ACTIONS = ("keep", "hash", "mask", "truncate", "null")
#: Forms of a hash: 64 lower-case hexadecimal digits, or 32 bytes.
HEX, BINARY = ENCODINGS = ("hex", "binary")


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
