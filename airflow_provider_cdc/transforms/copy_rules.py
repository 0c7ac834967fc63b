"""What a pipeline's settings say about the columns and rows of the tables that it copies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.column_policy import EXCLUDE, HASH, KEEP, ColumnPolicy
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.model.unsupported_values import shows_values
from airflow_provider_cdc.transforms.condition import parse_condition
from airflow_provider_cdc.transforms.policy_rules import policy_problem


def column_names(tables: Iterable[TableSchema]) -> Iterator[tuple[str, str, str]]:
    """Yield database, table and name of each column that tables have, or that is known to have been removed."""
    for table in tables:
        names = [column.name for column in (*table.columns, *table.retained) if not column.is_hidden]
        for name in (*names, *table.removed):
            yield *table.id, name


@dataclass(frozen=True)
class CopyRules:
    """The rules of one pipeline.

    :param hash_key_id: identifies the secret key of hashed columns; ``None`` if it is unknown here.
    """

    pipeline: Pipeline
    hash_key_id: str | None = None

    @property
    def fingerprint(self) -> str:
        """A hash of the rules; empty if all columns that are copied are copied as they are, in all rows."""
        transforms = self.pipeline.transforms
        rules = [dict(transforms.columns), dict(transforms.where), list(transforms.metadata)]
        if not any(rules):
            return ""
        text = json.dumps([*rules, self.hash_key_id], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def find_unmatched(self, columns: Iterable[tuple[str, str, str]]) -> list[NotReadyError]:
        """Return an error for each pattern that matches nothing: what it is to hide would be copied in clear.

        :param columns: database, table and name of each column of the captured tables, including excluded ones.
        """
        names, transforms = list(columns), self.pipeline.transforms
        tables = dict.fromkeys((database, table) for database, table, _ in names)
        return [
            NotReadyError(
                f"transforms.columns: {pattern} matches no column of the captured tables",
                "Correct it (an anchored database.table.column): values would be copied in clear; or remove it",
            )
            for pattern in transforms.unmatched(names)
        ] + [
            NotReadyError(
                f"transforms.where: {pattern} matches none of the captured tables",
                "Correct it (an anchored database.table): all rows would be copied; or remove it",
            )
            for pattern in transforms.unmatched_conditions(tables)
        ]

    def refuse_unmatched(self, columns: Iterable[tuple[str, str, str]]) -> None:
        """Refuse patterns that match nothing; the parameter is that of :meth:`find_unmatched`.

        :raises NotReadyError: for the first one.
        """
        for error in self.find_unmatched(columns):
            raise error

    def describe_difference(self, table: TableSchema) -> str | None:
        """Return how the rules differ from those by which a copy was made; ``None`` if they do not.

        :param table: the definition by which the copy was made.
        """
        for column in table.columns:
            is_excluded = not self.pipeline.copies_column(*table.id, column.name)
            if column.name in (*table.key, *table.auto_excluded) or column.is_hidden:
                continue
            if is_excluded != (column.name in table.excluded):
                rule = f"the column lists in source {'leave out' if is_excluded else 'no longer leave out'}"
                if self.pipeline.transforms.excludes(*table.id, column.name):
                    rule = "transforms.columns leaves out"
                return f"{rule} {column.name} of {table.label}, but its copy {'has' if is_excluded else 'lacks'} it"
        try:
            current = self.apply(table)
        except NotReadyError as error:
            return error.message
        if current.condition != table.condition:
            return f"transforms.where has another condition for {table.label} than its copy was made with"
        if current.metadata != table.metadata:
            return f"transforms.metadata lists other columns than the copy of {table.label} has"
        old, new = ({policy.column: policy for policy in one.policies} for one in (table, current))
        for column in table.copied_columns:
            before, after = old.get(column.name), new.get(column.name)
            if before is not None and after is not None and self.hash_key_id is None:
                after = after.replace(key_id=before.key_id)
            if before is not None and after is not None and before == after.replace(key_id=before.key_id) != after:
                return f"{column.name} of {table.label} was hashed with another secret key than the pipeline has now"
            if before != after:
                return (
                    f"transforms.columns has another policy for {column.name} of {table.label} than its copy was made "
                    "with"
                )
        return None

    def apply(self, table: TableSchema) -> TableSchema:
        """Return the definition of a table with what its copy has of it.

        :param table: the definition as the source has it.
        :raises NotReadyError: if a rule does not fit the table.
        """
        transforms, (database, name) = self.pipeline.transforms, table.id
        for column in table.key_columns:
            if transforms.excludes(database, name, column.name):
                self._check_policy(table, column, ColumnPolicy(column.name, EXCLUDE))
        table = table.select_columns(lambda column: self.pipeline.copies_column(database, name, column))
        table = table.replace(
            policies=tuple(self._policies(table, table.copied_columns)),
            metadata=transforms.metadata,
            shared=self.pipeline.sink.table_paths.shared_key_of(database, name),
        )
        condition = transforms.condition_of(database, name)
        if condition is None:
            return table.replace(condition=None, condition_columns=())
        try:
            columns = parse_condition(condition, table).columns
        except NotReadyError as error:
            raise NotReadyError(f"transforms.where: {error.message}", error.remedy, table=table.label) from None
        return table.replace(condition=condition, condition_columns=columns)

    def apply_to_altered(self, table: TableSchema, before: TableSchema) -> TableSchema:
        """Return :meth:`apply` of a table that is read again.

        A column may have another name now, for which there is no policy: its values would be copied in clear.

        :param before: the definition that its copy was made with.
        :raises NotReadyError: also if that may be so.
        """
        current = self.apply(table)
        old_names, names = ({column.name for column in one.columns} for one in (before, table))
        gone = [c.name for c in before.columns if c.name not in names and self._hides_values(before, c)]
        added = [c.name for c in current.copied_columns if c.name not in old_names and shows_values(current, c.name)]
        if gone and added:
            raise NotReadyError(
                f"column {gone[0]} of {table.label} is gone, whose values transforms.columns changes or leaves out, "
                f"and column {added[0]} is new, which may have its values",
                f"Give {added[0]} a policy in transforms.columns; or, if its values may be copied as they are, let no "
                f"pattern there match {gone[0]}. If no stream has begun yet, also start with a fresh sink.path",
                table=table.label,
            )
        return current

    def _hides_values(self, table: TableSchema, column: Column) -> bool:
        """Return whether the settings change the values of a column, or leave it out."""
        transforms, names = self.pipeline.transforms, (*table.id, column.name)
        policy = transforms.policy_of(*names)
        return transforms.excludes(*names) or (policy is not None and policy.action != KEEP)

    def policy_of(self, table: TableSchema, column: Column) -> ColumnPolicy | None:
        """Return the policy of one column of a table; ``None`` if its values and its name are copied as they are.

        :raises NotReadyError: if the column cannot have it.
        """
        policy = self.pipeline.transforms.policy_of(table.database, table.name, column.name)
        if policy is None:
            return None
        self._check_policy(table, column, policy)
        return policy.replace(key_id=self.hash_key_id) if policy.action == HASH else policy

    def _check_policy(self, table: TableSchema, column: Column, policy: ColumnPolicy) -> None:
        if problem := policy_problem(column, policy, is_key=column.name in table.key):
            raise NotReadyError(f"table {table.label}, {problem[0]}", problem[1], table=table.label)

    def _policies(self, table: TableSchema, columns: tuple[Column, ...]) -> Iterator[ColumnPolicy]:
        for column in columns:
            if (policy := self.policy_of(table, column)) is not None:
                yield policy
