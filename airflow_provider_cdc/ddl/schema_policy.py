"""Which changes of a table's definition are applied to its copy, and how columns are handled otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.ddl.schema_modes import (
    ADD_COLUMN,
    ALTER_TYPE,
    CHANGE_KINDS,
    DROP_COLUMN,
    EVOLVE,
    IGNORE,
    LENIENT,
)
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.row_retention import is_wider
from airflow_provider_cdc.model.schema import TableSchema


@dataclass(frozen=True)
class SchemaPolicy:
    """Which changes of a definition are applied to the copy.

    :param mode: one of :data:`~airflow_provider_cdc.ddl.schema_modes.SCHEMA_MODES`.
    :param copies_new_columns: whether new columns are copied; otherwise they are left out.
    :param drops_removed_columns: whether columns removed from the source are dropped; otherwise they stay, and new rows
        have NULL in them.
    :param allowed_types: which changes of a column's type are applied: ``all``, ``wider`` or ``none``.
    """

    mode: str
    copies_new_columns: bool = True
    drops_removed_columns: bool = True
    allowed_types: str = "all"

    @classmethod
    def from_settings(cls, mode: str, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> SchemaPolicy:
        """Make the policy of a pipeline.

        :param include: kinds of changes to apply; all if empty.
        :param exclude: kinds of changes not to apply; they override ``include``.
        """
        if mode == IGNORE:
            return cls(mode, copies_new_columns=False, drops_removed_columns=False, allowed_types="none")
        followed_kinds = (set(include) or {*CHANGE_KINDS}) - set(exclude)
        lenient = mode == LENIENT
        types = "none" if ALTER_TYPE not in followed_kinds else "wider" if lenient else "all"
        return cls(
            mode,
            copies_new_columns=ADD_COLUMN in followed_kinds,
            drops_removed_columns=DROP_COLUMN in followed_kinds and not lenient,
            allowed_types=types,
        )

    def decide_definition(
        self, before: TableSchema, after: TableSchema, *, overwrites_rows: bool = False, is_requested: bool = False
    ) -> TableSchema:
        """Return the definition after a change, according to this policy.

        :param before: the definition before the change.
        :param after: the source's new definition, without the columns that the pipeline does not copy.
        :param overwrites_rows: whether all rows are overwritten; otherwise they stay.
        :param is_requested: whether a user requested the overwrite: changes that are then unavoidable, such as another
            type, are applied regardless of the policy.
        :raises DdlNotFollowed: if a change is unavoidable and the policy does not allow it, and no user requested it.
        """
        known = {column.name.lower() for column in (*before.copied_columns, *before.retained)}
        new = () if self.copies_new_columns else tuple(c for c in after.copied_columns if c.name.lower() not in known)
        in_key = [column.name for column in new if column.name in after.key]
        if in_key and not is_requested:
            raise DdlNotFollowed(
                f"new column {in_key[0]} is part of the key, and {self._setting_text} leaves new columns out"
            )
        new = tuple(column for column in new if column.name not in in_key)
        if new and len(new) == len(after.copied_columns):
            if not is_requested:
                raise DdlNotFollowed(f"all of its columns are new, and {self._setting_text} leaves new columns out")
            new = ()
        auto_excluded = ({*before.auto_excluded} & {*after.excluded}) | {column.name for column in new}
        decided = after.replace(
            excluded=tuple(c.name for c in after.columns if c.name in {*after.excluded, *auto_excluded}),
            auto_excluded=tuple(c.name for c in after.columns if c.name in auto_excluded),
        )
        if not is_requested:
            self._check_types(before, decided)
        source_names, copied = (
            {c.name.lower() for c in columns} for columns in (decided.columns, decided.copy.copied_columns)
        )
        missing_columns = [
            copy
            for column, copy in zip(before.copied_columns, before.copy.copied_columns, strict=True)
            if column.name.lower() not in source_names
        ]
        if self.drops_removed_columns:
            retained = [] if overwrites_rows else [*before.retained]
        else:
            retained = [*before.retained, *(column.replace(nullable=True) for column in missing_columns)]
            if retained and not decided.key:  # its rows are compared by all values
                if not is_requested:
                    raise DdlNotFollowed(
                        f"column {retained[0].name} is gone, which a table without a usable key cannot keep"
                    )
                retained = []
        dropped = [c.name for c in missing_columns if self.drops_removed_columns]
        removed = () if overwrites_rows else (*before.removed, *dropped)
        retained = [column for column in retained if column.name.lower() not in copied]
        names = {column.name for column in retained}
        comments = (*decided.comments, *(pair for pair in before.comments if pair[0] in names))
        return decided.replace(retained=tuple(retained), removed=removed, comments=comments)

    def _check_types(self, before: TableSchema, after: TableSchema) -> None:
        old = {column.name.lower(): column for column in before.sink_columns}
        for column in after.copy.copied_columns:
            was = old.get(column.name.lower())
            if was is None or was.arrow_type == column.arrow_type or self.allowed_types == "all":
                continue
            if self.allowed_types == "wider" and is_wider(was.arrow_type, column.arrow_type):
                continue
            raise DdlNotFollowed(
                f"column {column.name} was {was.column_type} and is {column.column_type}, which {self._setting_text} "
                "does not take over"
            )

    @property
    def _setting_text(self) -> str:
        return f"stream.schema_changes: {self.mode}" if self.mode != EVOLVE else "stream.exclude_schema_changes"


def describe_change(before: TableSchema, after: TableSchema, changes: ColumnChanges = NO_CHANGES) -> str:
    """Return a human-readable summary of how a change affects the copy's columns; empty if it does not.

    :param changes: what the definitions do not show.
    """
    renamed, defaults = dict(changes.renamed), dict(changes.defaults)
    old, new = ({c.name for c in table.sink_columns} for table in (before, after))
    there, known = ({c.name for c in table.columns} for table in (after, before))
    retained = [c.name for c in after.retained if c not in before.retained]
    parts = {
        "renamed": [f"{name} to {new_name}" for name, new_name in renamed.items()],
        "new columns": [
            f"{c.name} (not NULL in existing rows)" if c.name in defaults else c.name
            for c in after.copy.copied_columns
            if c.name not in old and c.name not in renamed.values()
        ],
        "left out": [name for name in after.excluded if name not in known],
        "no longer in the source, and NULL from now on": retained,
        "dropped": [
            c.name for c in before.sink_columns if c.name not in new and c.name not in there and c.name not in renamed
        ],
    }
    return "".join(f"; {what}: {', '.join(names)}" for what, names in parts.items() if names)


def check_reused_names(
    before: TableSchema, definition: TableSchema, added: Iterable[str], *, by_name: bool = True
) -> None:
    """Check that no file of the copy has old values in new columns, which must be NULL.

    :param before: the definition before the change.
    :param definition: the definition after the change.
    :param added: names of the new columns.
    :param by_name: whether columns are found in files by name. If not, files keep the values of dropped columns apart.
    :raises DdlNotFollowed: if a file may have old values.
    """
    removed = before.removed if by_name else ()
    former_names = {*(name.lower() for name in removed), *(column.name.lower() for column in before.retained)}
    copied = {column.name for column in definition.copied_columns}
    for name in added:
        if name in copied and definition.copy_name(name).lower() in former_names:
            raise DdlNotFollowed(f"the copy had a column {name} before, and its files still have the old values")
