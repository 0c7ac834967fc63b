"""What happens to rows and columns on their way to the copy: ``transforms``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.config.patterns import check_patterns, matches_any
from airflow_provider_cdc.model.column_policy import (
    ENCODINGS,
    EXCLUDE,
    HASH,
    HEX,
    KEEP,
    MASK,
    METADATA_COLUMNS,
    NULL,
    TRUNCATE,
    ColumnPolicy,
)
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import check_choice, check_conn_id, check_integer, invalid_value

_RENAME = "rename"
_ALLOWED = (
    "hash, {hash: hex}, {hash: binary}, mask, {mask: 4}, {truncate: 20}, null or exclude, or {rename: name}, alone or "
    "with hash, mask or truncate"
)
#: Words that stand for a mapping.
_WORDS: dict[str, dict[str, Any]] = {HASH: {HASH: HEX}, MASK: {MASK: 0}}
#: More characters than a value of the source can have.
_MAX_LENGTH = (1 << 31) - 1
_MAX_NAME = 255
#: Metadata that is no choice, with its columns.
_ALWAYS_COPIED = {"operation": "_cdc_op", "commit_time": "_cdc_ts"}


@dataclass(frozen=True)
class Transforms:
    """Which columns are changed on their way to the copy, and which rows are copied.

    :param hash_key_conn_id: connection whose password is the secret key of hashed columns; required if there are any.
    :param columns: anchored regular expression ``database.table.column`` -> policy: ``hash`` (``{hash: hex}`` or
        ``{hash: binary}``), ``mask`` (``{mask: n}``: the last ``n`` characters stay), ``{truncate: n}`` (the first
        ``n`` characters or bytes stay), ``null`` (or ``None``, which is how YAML reads the bare word), ``exclude``, or
        ``{rename: name}``, which may be combined with the policies in braces.
    :param metadata: further columns of each copy, about the last change of each row: ``database``, ``table``,
        ``server``, ``file``, ``position`` and ``gtid``, as ``_cdc_database`` and so on. Commit time and operation are
        always there.
    :param where: anchored regular expression ``database.table`` -> condition that the rows of the copy fulfil, as SQL.
    """

    hash_key_conn_id: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)
    where: Mapping[str, str] = field(default_factory=dict, hash=False)
    metadata: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _check_columns(self.columns))
        object.__setattr__(self, "where", _check_conditions(self.where))
        object.__setattr__(self, "metadata", _check_metadata(self.metadata))
        if self.hash_key_conn_id is not None:
            check_conn_id("transforms.hash_key_conn_id", self.hash_key_conn_id)
        hashed = [pattern for pattern, policy in self.columns.items() if HASH in policy]
        if hashed and self.hash_key_conn_id is None:
            raise NotReadyError(
                f"transforms.columns has hash for {hashed[0]}, and transforms.hash_key_conn_id is missing",
                "Name a connection whose password is the secret key; openssl rand -hex 32 makes one",
            )
        if self.hash_key_conn_id is not None and not hashed:
            raise NotReadyError(
                "transforms.hash_key_conn_id is set, and transforms.columns has hash for no column", "Leave it out"
            )

    @property
    def hashes_columns(self) -> bool:
        """Whether any column is hashed, so that the secret key is needed."""
        return self.hash_key_conn_id is not None

    def policy_of(self, database: str, table: str, column: str) -> ColumnPolicy | None:
        """Return the policy of a column, without the id of the key; ``None`` if it is copied unchanged, or excluded.

        :raises NotReadyError: if the patterns of two different policies match the column.
        """
        policy = self._matching_policy(database, table, column)
        if policy is None or policy == EXCLUDE:
            return None
        if policy == NULL:
            return ColumnPolicy(column, NULL)
        name = policy.get(_RENAME)
        if HASH in policy:
            return ColumnPolicy(column, HASH, name, encoding=policy[HASH])
        action = next((action for action in (MASK, TRUNCATE) if action in policy), KEEP)
        return ColumnPolicy(column, action, name, length=policy.get(action, 0))

    def excludes(self, database: str, table: str, column: str) -> bool:
        """Return whether the copy does not have a column.

        :raises NotReadyError: if the patterns of two different policies match the column.
        """
        return bool(self._matching_policy(database, table, column) == EXCLUDE)

    def condition_of(self, database: str, table: str) -> str | None:
        """Return the condition that rows of a table must fulfil; ``None`` if all are copied.

        :raises NotReadyError: if the patterns of two different conditions match the table.
        """
        condition: str | None = _only_match("where", self.where, database, table)
        return condition

    def unmatched(self, columns: Iterable[tuple[str, str, str]]) -> list[str]:
        """Return the patterns of ``columns`` that match no column: a wrong name would leave values in clear.

        :param columns: database, table and name of each column of the captured tables, including excluded ones.
        """
        return _unmatched(self.columns, columns)

    def unmatched_conditions(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Return the patterns of ``where`` that match no table.

        :param tables: database and name of each captured table.
        """
        return _unmatched(self.where, tables)

    def _matching_policy(self, *names: str) -> Any:
        return _only_match("columns", self.columns, *names)


def _only_match(key: str, values: Mapping[str, Any], *names: str) -> Any:
    matching = [pattern for pattern in values if matches_any((pattern,), *names)]
    for pattern in matching[1:]:
        if values[pattern] != values[matching[0]]:
            raise NotReadyError(
                f"{'.'.join(names)} matches {matching[0]} and {pattern} of transforms.{key}, which differ",
                "Let one pattern match it, or give both the same value",
            )
    return values[matching[0]] if matching else None


def _unmatched(patterns: Iterable[str], names: Iterable[tuple[str, ...]]) -> list[str]:
    all_names = list(names)
    return [pattern for pattern in patterns if not any(matches_any((pattern,), *name) for name in all_names)]


def _check_mapping(key: str, values: object, example: str, dots: int) -> Mapping[str, Any]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise invalid_value(key, values, f"a mapping such as {example}")
    check_patterns(key, list(values), dots)
    return values


def _check_columns(columns: object) -> dict[str, Any]:
    values = _check_mapping("transforms.columns", columns, "{shop.customers.email: hash}", dots=2)
    return {pattern: _check_policy(f"transforms.columns: {pattern}", policy) for pattern, policy in values.items()}


def _check_conditions(conditions: object) -> dict[str, str]:
    values = _check_mapping("transforms.where", conditions, "{shop.orders: tenant_id = 7}", dots=1)
    for pattern, condition in values.items():
        if not isinstance(condition, str) or not condition.strip():
            raise invalid_value(f"transforms.where: {pattern}", condition, "a condition such as tenant_id = 7")
    return {pattern: condition.strip() for pattern, condition in values.items()}


def _check_metadata(names: object) -> tuple[str, ...]:
    """Return the names in the order of the columns."""
    allowed = f"a list of {', '.join(METADATA_COLUMNS)}"
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, list | tuple):
        raise invalid_value("transforms.metadata", names, allowed)
    for name in names:
        if name in _ALWAYS_COPIED:
            raise NotReadyError(
                f"transforms.metadata has {name}, which each copy has as {_ALWAYS_COPIED[name]}", "Leave it out"
            )
        if name not in METADATA_COLUMNS:
            raise invalid_value("transforms.metadata", name, allowed)
    return tuple(name for name in METADATA_COLUMNS if name in names)


def _check_policy(key: str, policy: object) -> Any:
    """Check the policy of a pattern, and return it as ``null``, ``exclude``, or a mapping."""
    if policy is None:
        return NULL
    if isinstance(policy, str) and policy in (NULL, EXCLUDE):
        return policy
    if isinstance(policy, str) and policy in _WORDS:
        return dict(_WORDS[policy])
    if not isinstance(policy, Mapping) or not policy or not {*policy} <= {HASH, MASK, TRUNCATE, _RENAME}:
        raise invalid_value(key, policy, _ALLOWED)
    if len({*policy} - {_RENAME}) > 1:
        raise invalid_value(key, policy, "one of hash, mask and truncate")
    if HASH in policy:
        check_choice(f"{key}.{HASH}", policy[HASH], ENCODINGS, (), "")
    if MASK in policy:
        check_integer(f"{key}.{MASK}", policy[MASK], 0, _MAX_LENGTH)
    if TRUNCATE in policy:
        check_integer(f"{key}.{TRUNCATE}", policy[TRUNCATE], 1, _MAX_LENGTH)
    if _RENAME in policy:
        _check_name(f"{key}.{_RENAME}", policy[_RENAME])
    return dict(policy)


def _check_name(key: str, name: object) -> None:
    is_name = isinstance(name, str) and name.isprintable() and name == name.strip() and 0 < len(name) <= _MAX_NAME
    if not is_name:
        raise invalid_value(key, name, f"a name of 1 to {_MAX_NAME} characters, without spaces at its ends")
