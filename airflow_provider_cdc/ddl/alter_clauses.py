"""The clauses of an ALTER TABLE, and how each one changes a table's definition."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_cdc.ddl.column_changes import (
    check_column_drop,
    check_null_is_explicit,
    check_nullability,
    check_type_change,
)
from airflow_provider_cdc.ddl.column_parser import ColumnDefinition, parse_column, parse_default, resolve_collation
from airflow_provider_cdc.ddl.constant_defaults import constant_default
from airflow_provider_cdc.ddl.index_parser import (
    accept_algorithm_or_lock,
    is_rename_index,
    parse_index_kind,
    skip_index_parts,
    skip_name_list,
)
from airflow_provider_cdc.ddl.token_cursor import (
    DdlNotFollowed,
    ParsedClause,
    ServerTraits,
    StatementSession,
    TokenCursor,
)
from airflow_provider_cdc.ddl.tokens import word_set
from airflow_provider_cdc.model.schema import TEXT_TYPES, TableSchema
from airflow_provider_cdc.model.table_names import fold_name

_NEUTRAL_OPTIONS = word_set(
    "AUTO_INCREMENT ROW_FORMAT STATS_PERSISTENT STATS_AUTO_RECALC STATS_SAMPLE_PAGES KEY_BLOCK_SIZE COMPRESSION"
)
_TABLE_OPTIONS = _NEUTRAL_OPTIONS | {"COMMENT", "ENGINE", "DEFAULT", "CHARSET", "CHARACTER", "COLLATE"}
#: First words of clauses that are known but not followed, and their names in messages.
_UNSUPPORTED_CLAUSES = {
    "ADD PARTITION": "ADD PARTITION",
    "ADD PERIOD": "ADD PERIOD",
    "ADD PRIMARY": "ADD PRIMARY KEY",
    "ADD SYSTEM": "ADD SYSTEM VERSIONING",
    "ADD UNIQUE": "ADD UNIQUE",
    "ADD VECTOR": "ADD VECTOR INDEX",
    "CONVERT TO": "CONVERT TO CHARACTER SET",
    "DROP PARTITION": "DROP PARTITION",
    "DROP PRIMARY": "DROP PRIMARY KEY",
    "DROP SYSTEM": "DROP SYSTEM VERSIONING",
    "RENAME COLUMN": "RENAME COLUMN",
    **{word: word for word in ("DISCARD", "IMPORT", "EXCHANGE", "TRUNCATE", "REORGANIZE", "COALESCE", "PARTITION")},
    **{word: word for word in ("ORDER", "REMOVE", "ENCRYPTION", "RENAME", "TABLESPACE", "REBUILD")},
}

_RENAME_COLUMN = ("RENAME", "COLUMN")


@dataclass
class AlterTableParser:
    """Applies the clauses of an ALTER TABLE to a table's definition, one after the other."""

    before: TableSchema
    cursor: TokenCursor
    session: StatementSession
    server: ServerTraits
    #: Whether renamed columns, constant defaults and wider types are followed.
    in_place: bool = False
    added: list[str] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    #: New name of each renamed column, and value of existing rows in each new column that has one.
    renamed: dict[str, str] = field(default_factory=dict)
    renamed_by_change: set[str] = field(default_factory=set)
    defaults: dict[str, str] = field(default_factory=dict)
    #: Names of the columns behind which others are added.
    positions: set[str] = field(default_factory=set)
    parsed_clauses: list[ParsedClause] = field(default_factory=list)
    #: Whether the table's collation is given, and whether a column is defined that may depend on it.
    collation_given: bool = False
    defines_text: bool = False

    def __post_init__(self) -> None:
        self.columns = list(self.before.columns)
        self.comments = dict(self.before.comments)
        self.charset: str | None = None
        self.collation: str | None = None

    def build_definition(self) -> TableSchema:
        """Return the definition that results from the clauses."""
        self._rename_columns()
        collation = self.before.collation
        if self.collation_given:
            if self.defines_text:
                raise DdlNotFollowed("it defines text columns and also changes the default collation of the table")
            _, collation = resolve_collation(
                "DEFAULT CHARACTER SET", self.session, self.server, None, self.charset, self.collation
            )
        comments = tuple((c.name, self.comments[c.name]) for c in self.columns if self.comments.get(c.name))
        left_out = tuple(c.name for c in self.columns if c.name in self.before.excluded)
        definition = self.before.replace(columns=tuple(self.columns), excluded=left_out)
        return definition.replace(comments=comments, collation=collation)

    # ---------------------------------------------------------------- clauses

    def parse_clauses(self) -> None:
        """Parse all clauses of an ALTER TABLE."""
        after_option: bool | None = None  # kind of the previous clause: none, a table option or another one
        while not self.cursor.at_end:
            is_separated = (
                after_option is None
                or self.cursor.accept(",")
                or (after_option and self.cursor.peek() in _TABLE_OPTIONS)
            )
            if not is_separated:
                self.cursor.fail("between two clauses")
            after_option = self._parse_clause()

    def _parse_clause(self) -> bool:
        """Parse one clause; return whether it is a table option, which needs no comma after it."""
        cursor, first = self.cursor, self.cursor.at
        if accept_algorithm_or_lock(cursor):
            return False
        if cursor.peek() in _TABLE_OPTIONS:
            self._parse_table_option()
            self._record_clause(first, "table options", "")
            return True
        for keys in (f"{cursor.peek()} {cursor.peek(1)}", cursor.peek()):
            is_rename = is_rename_index(cursor) or (self.in_place and (cursor.peek(), cursor.peek(1)) == _RENAME_COLUMN)
            if keys in _UNSUPPORTED_CLAUSES and not is_rename:
                raise DdlNotFollowed(f"{_UNSUPPORTED_CLAUSES[keys]} is not followed")
        if cursor.accept("FORCE"):
            self._record_clause(first, "FORCE", "ForceProperty")
        elif cursor.accept("ADD"):
            self._parse_add(first)
        elif cursor.accept("DROP"):
            self._parse_drop(first)
        elif cursor.accept("MODIFY"):
            cursor.accept("COLUMN")
            self._parse_modify(first, cursor.accept("IF", "EXISTS"), "MODIFY")
        elif cursor.accept("CHANGE"):
            cursor.accept("COLUMN")
            self._parse_modify(first, cursor.accept("IF", "EXISTS"), "CHANGE")
        elif cursor.accept("ALTER"):
            self._parse_alter(first)
        elif cursor.accept("RENAME", "COLUMN"):
            self._parse_rename_column(first)
        elif cursor.accept("RENAME"):
            self._parse_rename_index(first)
        else:
            cursor.fail("a clause")
        return False

    def _record_clause(
        self,
        first: int,
        label: str,
        sqlglot_name: str,
        column: str | None = None,
        prefix: str = "",
        has_expression: bool = False,
    ) -> None:
        text = f"ALTER TABLE `t` {prefix}{self.cursor.text_since(first)}"
        self.parsed_clauses.append(ParsedClause(text, label, sqlglot_name, column, has_expression))

    def _parse_table_option(self) -> None:
        cursor = self.cursor
        word = cursor.accept_any(*_NEUTRAL_OPTIONS, "COMMENT", "ENGINE")
        if word:
            cursor.accept("=")
            if word == "ENGINE":
                if (cursor.expect_string(word) if cursor.at_string else cursor.expect_name(word)).upper() != "INNODB":
                    raise DdlNotFollowed("ENGINE: only InnoDB is followed")
            elif word == "COMMENT" or cursor.at_string:
                cursor.expect_string(word)
            elif cursor.peek().isdigit():
                cursor.expect_number(word)
            else:
                cursor.expect_name(word)
            return
        cursor.accept("DEFAULT")
        self.collation_given = True
        is_charset = cursor.accept("CHARSET") or cursor.accept("CHARACTER", "SET")
        if not is_charset:
            cursor.expect("COLLATE", "table options")
        cursor.accept("=")
        where = "the default character set"
        value = (cursor.expect_string(where) if cursor.at_string else cursor.expect_name(where)).lower()
        if (self.charset if is_charset else self.collation) is not None:
            raise DdlNotFollowed(f"{where} is given twice")
        if is_charset:
            self.charset = value
        else:
            self.collation = value

    # ---------------------------------------------------------------- columns

    def _find_column(self, name: str, where: str) -> int | None:
        """Return the index of a column; names are compared as servers compare them."""
        for at, column in enumerate(self.columns):
            if not column.is_hidden and fold_name(column.name) == fold_name(name):
                if column.name != name and not (name.isascii() and column.name.isascii()):
                    raise DdlNotFollowed(f"{where}: the name differs from that of a column in a few characters only")
                return at
        return None

    def _parse_add(self, first: int) -> None:
        cursor = self.cursor
        is_column = cursor.accept("COLUMN")
        if cursor.peek() == "(":
            cursor.accept("(")
            while True:
                self._parse_add_column(cursor.at, False, "ADD COLUMN ")
                if not cursor.accept(","):
                    break
            cursor.expect(")", "ADD")
        elif not is_column and cursor.peek() in {"INDEX", "KEY", "FULLTEXT", "SPATIAL"}:
            kind = parse_index_kind(cursor)
            _ = cursor.accept("IF", "NOT", "EXISTS")
            if cursor.peek() not in {"(", "USING"}:
                cursor.expect_name(f"ADD {kind}")
            skip_index_parts(cursor, f"ADD {kind}")
            self._record_clause(first, f"ADD {kind}", "AddConstraint")
        elif not is_column and cursor.peek() in {"CONSTRAINT", "FOREIGN", "CHECK"}:
            self._parse_add_constraint(first)
        else:
            self._parse_add_column(first, cursor.accept("IF", "NOT", "EXISTS"), "")

    def _parse_add_column(self, first: int, unless_there: bool, prefix: str) -> None:
        cursor = self.cursor
        if prefix and cursor.peek() in {"INDEX", "KEY", "UNIQUE", "PRIMARY", "FOREIGN", "CHECK", "CONSTRAINT", "IF"}:
            cursor.fail("ADD")
        if prefix and cursor.peek() in {"FULLTEXT", "SPATIAL", "PERIOD", "VECTOR"}:
            cursor.fail("ADD")
        name = cursor.expect_name("ADD COLUMN")
        where = f"ADD COLUMN {name}"
        column_definition = parse_column(cursor, name, where, self.session, self.server, self.before.collation)
        at = self._parse_column_position(where)
        self._record_clause(first, where, "ColumnDef", name, prefix)
        if fold_name(name) in self.removed:
            raise DdlNotFollowed(f"{where}: a column of this name is dropped by the same statement")
        if self._find_column(name, where) is not None:
            if unless_there and name not in self.added:
                return
            raise DdlNotFollowed(f"{where}: the table already has it")
        if fold_name(name).startswith("db_row_hash_"):
            raise DdlNotFollowed(f"{where}: MariaDB may have a hidden column with this name")
        if column_definition.nullability is False and not self.in_place:
            raise DdlNotFollowed(f"{where}: existing rows get a value because it is NOT NULL")
        if column_definition.default is not None and not self.in_place:
            raise DdlNotFollowed(f"{where}: existing rows get its DEFAULT")
        check_null_is_explicit(column_definition, where)
        if (value := constant_default(column_definition, where)) is not None:
            self.defaults[name] = value
        if column_definition.nullability is False:
            column_definition.column = column_definition.column.replace(nullable=False)
        self._note_text_column(column_definition)
        self.columns.insert(at, column_definition.column)
        self.comments[name] = column_definition.comment
        self.added.append(name)

    def _note_text_column(self, column_definition: ColumnDefinition) -> None:
        self.defines_text |= column_definition.column.data_type in TEXT_TYPES | {"enum", "set"}

    def _parse_column_position(self, where: str) -> int:
        cursor = self.cursor
        if cursor.accept("FIRST"):
            if self.columns[0].name == "my_row_id":
                raise DdlNotFollowed(f"{where}: FIRST in a table with a generated key is not followed")
            return 0
        if cursor.accept("AFTER"):
            name = cursor.expect_name(f"{where}, AFTER")
            self.positions.add(fold_name(name))
            at = self._find_column(name, where)
            if at is None:
                raise DdlNotFollowed(f"{where}: the column after which it is added is not known")
            return at + 1
        return next((i for i, c in enumerate(self.columns) if c.is_hidden), len(self.columns))

    def _parse_modify(self, first: int, if_there: bool, clause: str) -> None:
        cursor = self.cursor
        name = cursor.expect_name(clause)
        where = f"{clause} {name}"
        new_name = cursor.expect_name(clause) if clause == "CHANGE" else name
        if new_name != name and not self.in_place:
            raise DdlNotFollowed(f"{where}: renaming a column is not followed")
        column_definition = parse_column(cursor, name, where, self.session, self.server, self.before.collation)
        if cursor.peek() in {"FIRST", "AFTER"}:
            raise DdlNotFollowed(f"{where}: moving a column is not followed")
        self._record_clause(first, where, "ModifyColumn", new_name)
        at = self._find_column(name, where)
        if at is None:
            if if_there:
                return
            raise DdlNotFollowed(f"{where}: the table does not have it")
        if self.columns[at].name != name:
            raise DdlNotFollowed(f"{where}: renaming a column is not followed")
        if name in self.changed or name in self.added:
            raise DdlNotFollowed(f"{where}: it is changed twice")
        self.changed.add(name)
        self._note_text_column(column_definition)
        check_nullability(self.before, self.columns[at], column_definition, where)
        check_type_change(
            self.before, self.columns, at, column_definition.column, self.server, where, may_widen=self.in_place
        )
        self.columns[at] = column_definition.column
        self.comments[name] = column_definition.comment
        if new_name != name:
            self._add_rename(name, new_name, where)
            self.renamed_by_change.add(name)

    def _parse_rename_column(self, first: int) -> None:
        cursor = self.cursor
        name = cursor.expect_name("RENAME COLUMN")
        where = f"RENAME COLUMN {name}"
        cursor.expect("TO", where)
        new_name = cursor.expect_name(where)
        self._record_clause(first, where, "RenameColumn")
        at = self._find_column(name, where)
        if at is None:
            raise DdlNotFollowed(f"{where}: the table does not have it")
        self._add_rename(self.columns[at].name, new_name, where)

    def _add_rename(self, name: str, new_name: str, where: str) -> None:
        if name in self.before.key:
            raise DdlNotFollowed(f"{where}: renaming a key column is not followed")
        if name in self.renamed or fold_name(name) == fold_name(new_name):
            raise DdlNotFollowed(f"{where}: it is changed twice, or only the case of its name changes")
        if fold_name(new_name).startswith("db_row_hash_"):
            raise DdlNotFollowed(f"{where}: MariaDB may have a hidden column with this name")
        self.renamed[name] = new_name

    def _rename_columns(self) -> None:
        """Rename columns, all at once, as the server does: names may be exchanged."""
        if not self.renamed:
            return
        modified = self.changed - self.renamed_by_change
        other_names = {*map(fold_name, (*self.added, *modified)), *self.removed, *self.positions}
        if other_names & {fold_name(name) for pair in self.renamed.items() for name in pair}:
            raise DdlNotFollowed("it renames a column and uses one of these names for something else")
        self.columns = [c.replace(name=self.renamed.get(c.name, c.name)) for c in self.columns]
        folded = [fold_name(c.name) for c in self.columns]
        if len({*folded}) < len(folded):
            raise DdlNotFollowed("two columns would have the same name")
        self.comments = {self.renamed.get(name, name): text for name, text in self.comments.items()}

    def _parse_alter(self, first: int) -> None:
        cursor = self.cursor
        if cursor.accept("INDEX"):
            cursor.expect_name("ALTER INDEX")
            if not (cursor.accept("VISIBLE") or cursor.accept("INVISIBLE")):
                cursor.fail("ALTER INDEX")
            if self.before.key_index != "PRIMARY":
                raise DdlNotFollowed("ALTER INDEX: it may change the key of a table without a primary key")
            self._record_clause(first, "ALTER INDEX", "AlterIndex")
            return
        if cursor.accept_any("CHECK", "CONSTRAINT"):
            cursor.expect_name("ALTER CHECK")
            cursor.accept("NOT")
            cursor.expect("ENFORCED", "ALTER CHECK")
            self._record_clause(first, "ALTER CHECK", "AlterColumn")
            return
        cursor.accept("COLUMN")
        name = cursor.expect_name("ALTER COLUMN")
        where = f"ALTER COLUMN {name}"
        if self._find_column(name, where) is None:
            raise DdlNotFollowed(f"{where}: the table does not have it")
        free = False
        if cursor.accept("SET", "DEFAULT"):
            free = cursor.peek() == "("
            parse_default(cursor, where)
        elif cursor.accept("SET"):
            if not (cursor.accept("VISIBLE") or cursor.accept("INVISIBLE")):
                cursor.fail(where)
        elif not cursor.accept("DROP", "DEFAULT"):
            cursor.fail(where)
        self._record_clause(first, where, "AlterColumn", has_expression=free)

    # ---------------------------------------------------------------- indexes and constraints

    def _parse_add_constraint(self, first: int) -> None:
        cursor = self.cursor
        if cursor.accept("CONSTRAINT") and cursor.peek() not in {"FOREIGN", "CHECK", "UNIQUE", "PRIMARY"}:
            _ = cursor.accept("IF", "NOT", "EXISTS")
            cursor.expect_name("ADD CONSTRAINT")
        if cursor.accept("CHECK"):
            cursor.skip_brackets("ADD CHECK")
            _ = cursor.accept("NOT", "ENFORCED") or cursor.accept("ENFORCED")
            self._record_clause(first, "ADD CHECK", "AddConstraint", has_expression=True)
            return
        where = "ADD FOREIGN KEY"
        if not cursor.accept("FOREIGN", "KEY"):
            cursor.fail("ADD CONSTRAINT")
        if cursor.peek() != "(":
            cursor.expect_name(where)
        skip_name_list(cursor, where)
        cursor.expect("REFERENCES", where)
        cursor.expect_name(where)
        if cursor.accept("."):
            cursor.expect_name(where)
        skip_name_list(cursor, where)
        while cursor.accept("ON"):
            if not cursor.accept_any("DELETE", "UPDATE"):
                cursor.fail(where)
            if not cursor.accept("RESTRICT") and not cursor.accept("NO", "ACTION"):
                raise DdlNotFollowed(f"{where}: rows that it changes by CASCADE or SET NULL are not in the binlog")
        self._record_clause(first, where, "AddConstraint")

    def _parse_drop(self, first: int) -> None:
        cursor = self.cursor
        kind = cursor.accept_any("INDEX", "KEY", "FOREIGN", "CHECK", "CONSTRAINT")
        if not kind:
            self._parse_drop_column(first)
            return
        if kind == "FOREIGN":
            cursor.expect("KEY", "DROP FOREIGN KEY")
        cursor.accept("IF", "EXISTS")
        name = cursor.expect_name(f"DROP {kind}")
        if kind in ("INDEX", "KEY", "CONSTRAINT"):
            self.check_index_drop(name, f"DROP {kind}")
        self._record_clause(first, f"DROP {kind}", "Drop")

    def _parse_drop_column(self, first: int) -> None:
        cursor = self.cursor
        cursor.accept("COLUMN")
        if_there = cursor.accept("IF", "EXISTS")
        name = cursor.expect_name("DROP COLUMN")
        where = f"DROP COLUMN {name}"
        cursor.accept_any("RESTRICT", "CASCADE")
        self._record_clause(first, where, "Drop")
        at = self._find_column(name, where)
        if at is None:
            if if_there:
                return
            raise DdlNotFollowed(f"{where}: the table does not have it")
        column = self.columns[at]
        if column.name in self.changed or column.name in self.added:
            raise DdlNotFollowed(f"{where}: it is changed twice")
        check_column_drop(self.before, column, where)
        del self.columns[at]
        self.removed.add(fold_name(column.name))

    def check_index_drop(self, index: str, where: str) -> None:
        """Check that a dropped index is not the key and has no column in row events."""
        before = self.before
        if before.key and (before.key_index is None or fold_name(before.key_index) == fold_name(index)):
            raise DdlNotFollowed(f"{where}: it is, or may be, the index that is the key")
        if fold_name(index) == "primary":
            raise DdlNotFollowed("DROP PRIMARY KEY is not followed")
        if any(c.is_hidden for c in before.columns):
            raise DdlNotFollowed(f"{where}: a unique index of hashes has a column in row events")

    def _parse_rename_index(self, first: int) -> None:
        cursor = self.cursor
        if not cursor.accept_any("INDEX", "KEY"):
            cursor.fail("RENAME")
        cursor.expect_name("RENAME INDEX")
        cursor.expect("TO", "RENAME INDEX")
        cursor.expect_name("RENAME INDEX")
        if self.before.key and self.before.key_index != "PRIMARY":
            raise DdlNotFollowed("RENAME INDEX: it may change the key of a table without a primary key")
        self._record_clause(first, "RENAME INDEX", "RenameIndex")
