"""The clauses of an ALTER TABLE, and what each makes of a table's definition."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_provider_cdc.ddl.alter_parser import Clause, Cursor, NotFollowed, Server, Session
from airflow_provider_cdc.ddl.column_changes import check_dropped, check_null, check_type, known_null
from airflow_provider_cdc.ddl.column_parser import Defined, read_column, read_default, text_collation
from airflow_provider_cdc.ddl.index_parser import index_kind, index_parts, names, neutral, renames_index
from airflow_provider_cdc.model.schema import TEXT_TYPES, TableSchema
from airflow_provider_cdc.model.table_names import fold

_NEUTRAL_OPTIONS = frozenset(
    [
        "AUTO_INCREMENT",
        "ROW_FORMAT",
        "STATS_PERSISTENT",
        "STATS_AUTO_RECALC",
        "STATS_SAMPLE_PAGES",
        "KEY_BLOCK_SIZE",
        "COMPRESSION",
    ]
)
_OPTIONS = _NEUTRAL_OPTIONS | {"COMMENT", "ENGINE", "DEFAULT", "CHARSET", "CHARACTER", "COLLATE"}
#: First words of clauses that are known and not followed, and how they are called.
_NAMED = {
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


@dataclass
class Work:
    """The definition as far as the clauses before have made it."""

    before: TableSchema
    words: Cursor
    session: Session
    server: Server
    added: list[str] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    read: list[Clause] = field(default_factory=list)
    #: Whether the table's collation is said, and whether a column is defined that may go by it.
    collated: bool = False
    textual: bool = False

    def __post_init__(self) -> None:
        self.columns = list(self.before.columns)
        self.comments = dict(self.before.comments)
        self.charset: str | None = None
        self.collation: str | None = None

    def definition(self) -> TableSchema:
        """What the clauses have made of the table."""
        collation = self.before.collation
        if self.collated:
            if self.textual:
                raise NotFollowed("it defines texts, and changes the default collation of the table as well")
            _, collation = text_collation(
                "DEFAULT CHARACTER SET", self.session, self.server, None, self.charset, self.collation
            )
        comments = tuple((c.name, self.comments[c.name]) for c in self.columns if self.comments.get(c.name))
        left_out = tuple(c.name for c in self.columns if c.name in self.before.left_out)
        made = replace(self.before, columns=tuple(self.columns), left_out=left_out)
        return replace(made, comments=comments, collation=collation)

    # ---------------------------------------------------------------- clauses

    def clauses(self) -> None:
        """Read all clauses of an ALTER TABLE."""
        behind: bool | None = None  # which kind of clause stood before: none, a table option or another one
        while not self.words.over:
            apart = behind is None or self.words.take(",") or (behind and self.words.peek() in _OPTIONS)
            if not apart:
                self.words.refuse("between two clauses")
            behind = self._clause()

    def _clause(self) -> bool:
        """Read one; whether it is a table option, behind which no comma must stand."""
        words, first = self.words, self.words.at
        if neutral(words):
            return False
        if words.peek() in _OPTIONS:
            self._option()
            self._note(first, "table options", "")
            return True
        for keys in (f"{words.peek()} {words.peek(1)}", words.peek()):
            if keys in _NAMED and not renames_index(words):
                raise NotFollowed(f"{_NAMED[keys]} is not followed")
        if words.take("FORCE"):
            self._note(first, "FORCE", "ForceProperty")
        elif words.take("ADD"):
            self._add(first)
        elif words.take("DROP"):
            self._drop(first)
        elif words.take("MODIFY"):
            words.take("COLUMN")
            self._modify(first, words.take("IF", "EXISTS"), "MODIFY")
        elif words.take("CHANGE"):
            words.take("COLUMN")
            self._modify(first, words.take("IF", "EXISTS"), "CHANGE")
        elif words.take("ALTER"):
            self._alter(first)
        elif words.take("RENAME"):
            self._rename_index(first)
        else:
            words.refuse("a clause")
        return False

    def _note(
        self, first: int, where: str, action: str, column: str | None = None, prefix: str = "", free: bool = False
    ) -> None:
        text = f"ALTER TABLE `t` {prefix}{self.words.text(first)}"
        self.read.append(Clause(text, where, action, column, free))

    def _option(self) -> None:
        words = self.words
        word = words.any_of(*_NEUTRAL_OPTIONS, "COMMENT", "ENGINE")
        if word:
            words.take("=")
            if word == "ENGINE":
                if (words.string(word) if words.at_string else words.name(word)).upper() != "INNODB":
                    raise NotFollowed("ENGINE: another one than InnoDB is not followed")
            elif word == "COMMENT" or words.at_string:
                words.string(word)
            elif words.peek().isdigit():
                words.number(word)
            else:
                words.name(word)
            return
        words.take("DEFAULT")
        self.collated = True
        is_charset = words.take("CHARSET") or words.take("CHARACTER", "SET")
        if not is_charset:
            words.expect("COLLATE", "table options")
        words.take("=")
        where = "the default character set"
        said = (words.string(where) if words.at_string else words.name(where)).lower()
        if (self.charset if is_charset else self.collation) is not None:
            raise NotFollowed(f"{where} is said twice")
        if is_charset:
            self.charset = said
        else:
            self.collation = said

    # ---------------------------------------------------------------- columns

    def _find(self, name: str, where: str) -> int | None:
        """Where a column is, by its name as servers compare names."""
        for at, column in enumerate(self.columns):
            if not column.hidden and fold(column.name) == fold(name):
                if column.name != name and not (name.isascii() and column.name.isascii()):
                    raise NotFollowed(f"{where}: a name that differs from one of the table in few signs")
                return at
        return None

    def _add(self, first: int) -> None:
        words = self.words
        is_column = words.take("COLUMN")
        if words.peek() == "(":
            words.take("(")
            while True:
                self._add_column(words.at, False, "ADD COLUMN ")
                if not words.take(","):
                    break
            words.expect(")", "ADD")
        elif not is_column and words.peek() in {"INDEX", "KEY", "FULLTEXT", "SPATIAL"}:
            kind = index_kind(words)
            _ = words.take("IF", "NOT", "EXISTS")
            if words.peek() not in {"(", "USING"}:
                words.name(f"ADD {kind}")
            index_parts(words, f"ADD {kind}")
            self._note(first, f"ADD {kind}", "AddConstraint")
        elif not is_column and words.peek() in {"CONSTRAINT", "FOREIGN", "CHECK"}:
            self._add_constraint(first)
        else:
            self._add_column(first, words.take("IF", "NOT", "EXISTS"), "")

    def _add_column(self, first: int, unless_there: bool, prefix: str) -> None:
        words = self.words
        if prefix and words.peek() in {"INDEX", "KEY", "UNIQUE", "PRIMARY", "FOREIGN", "CHECK", "CONSTRAINT", "IF"}:
            words.refuse("ADD")
        if prefix and words.peek() in {"FULLTEXT", "SPATIAL", "PERIOD", "VECTOR"}:
            words.refuse("ADD")
        name = words.name("ADD COLUMN")
        where = f"ADD COLUMN {name}"
        found = read_column(words, name, where, self.session, self.server, self.before.collation)
        at = self._place(where)
        self._note(first, where, "ColumnDef", name, prefix)
        if fold(name) in self.removed:
            raise NotFollowed(f"{where}: a column of this name is dropped by the same statement")
        if self._find(name, where) is not None:
            if unless_there and name not in self.added:
                return
            raise NotFollowed(f"{where}: the table has it already")
        if fold(name).startswith("db_row_hash_"):
            raise NotFollowed(f"{where}: MariaDB may have a hidden column with this name")
        if found.null is False:
            raise NotFollowed(f"{where}: rows that were there get a value where it is NOT NULL")
        if found.default:
            raise NotFollowed(f"{where}: rows that were there get its DEFAULT")
        known_null(found, where)
        self._defines(found)
        self.columns.insert(at, found.column)
        self.comments[name] = found.comment
        self.added.append(name)

    def _defines(self, found: Defined) -> None:
        self.textual |= found.column.data_type in TEXT_TYPES | {"enum", "set"}

    def _place(self, where: str) -> int:
        words = self.words
        if words.take("FIRST"):
            if self.columns[0].name == "my_row_id":
                raise NotFollowed(f"{where}: FIRST in a table with a generated key is not followed")
            return 0
        if words.take("AFTER"):
            at = self._find(words.name(f"{where}, AFTER"), where)
            if at is None:
                raise NotFollowed(f"{where}: the column behind which it stands is not known")
            return at + 1
        return next((i for i, c in enumerate(self.columns) if c.hidden), len(self.columns))

    def _modify(self, first: int, if_there: bool, clause: str) -> None:
        words = self.words
        name = words.name(clause)
        where = f"{clause} {name}"
        if clause == "CHANGE" and words.name(clause) != name:
            raise NotFollowed(f"{where}: another name is not followed")
        found = read_column(words, name, where, self.session, self.server, self.before.collation)
        if words.peek() in {"FIRST", "AFTER"}:
            raise NotFollowed(f"{where}: another place of a column is not followed")
        self._note(first, where, "ModifyColumn", name)
        at = self._find(name, where)
        if at is None:
            if if_there:
                return
            raise NotFollowed(f"{where}: the table does not have it")
        if self.columns[at].name != name:
            raise NotFollowed(f"{where}: another name is not followed")
        if name in self.changed or name in self.added:
            raise NotFollowed(f"{where}: it is changed twice")
        self.changed.add(name)
        self._defines(found)
        check_null(self.before, self.columns[at], found, where)
        check_type(self.before, self.columns, at, found.column, self.server, where)
        self.columns[at] = found.column
        self.comments[name] = found.comment

    def _alter(self, first: int) -> None:
        words = self.words
        if words.take("INDEX"):
            words.name("ALTER INDEX")
            if not (words.take("VISIBLE") or words.take("INVISIBLE")):
                words.refuse("ALTER INDEX")
            if self.before.key_index != "PRIMARY":
                raise NotFollowed("ALTER INDEX: a table without a primary key may get another key by it")
            self._note(first, "ALTER INDEX", "AlterIndex")
            return
        if words.any_of("CHECK", "CONSTRAINT"):
            words.name("ALTER CHECK")
            words.take("NOT")
            words.expect("ENFORCED", "ALTER CHECK")
            self._note(first, "ALTER CHECK", "AlterColumn")
            return
        words.take("COLUMN")
        name = words.name("ALTER COLUMN")
        where = f"ALTER COLUMN {name}"
        if self._find(name, where) is None:
            raise NotFollowed(f"{where}: the table does not have it")
        free = False
        if words.take("SET", "DEFAULT"):
            free = words.peek() == "("
            read_default(words, where)
        elif words.take("SET"):
            if not (words.take("VISIBLE") or words.take("INVISIBLE")):
                words.refuse(where)
        elif not words.take("DROP", "DEFAULT"):
            words.refuse(where)
        self._note(first, where, "AlterColumn", free=free)

    # ---------------------------------------------------------------- indexes and constraints

    def _add_constraint(self, first: int) -> None:
        words = self.words
        if words.take("CONSTRAINT") and words.peek() not in {"FOREIGN", "CHECK", "UNIQUE", "PRIMARY"}:
            _ = words.take("IF", "NOT", "EXISTS")
            words.name("ADD CONSTRAINT")
        if words.take("CHECK"):
            words.balanced("ADD CHECK")
            _ = words.take("NOT", "ENFORCED") or words.take("ENFORCED")
            self._note(first, "ADD CHECK", "AddConstraint", free=True)
            return
        where = "ADD FOREIGN KEY"
        if not words.take("FOREIGN", "KEY"):
            words.refuse("ADD CONSTRAINT")
        if words.peek() != "(":
            words.name(where)
        names(words, where)
        words.expect("REFERENCES", where)
        words.name(where)
        if words.take("."):
            words.name(where)
        names(words, where)
        while words.take("ON"):
            if not words.any_of("DELETE", "UPDATE"):
                words.refuse(where)
            if not words.take("RESTRICT") and not words.take("NO", "ACTION"):
                raise NotFollowed(f"{where}: rows that it changes by CASCADE or SET NULL are not in the binlog")
        self._note(first, where, "AddConstraint")

    def _drop(self, first: int) -> None:
        words = self.words
        kind = words.any_of("INDEX", "KEY", "FOREIGN", "CHECK", "CONSTRAINT")
        if not kind:
            self._drop_column(first)
            return
        if kind == "FOREIGN":
            words.expect("KEY", "DROP FOREIGN KEY")
        words.take("IF", "EXISTS")
        name = words.name(f"DROP {kind}")
        if kind in ("INDEX", "KEY", "CONSTRAINT"):
            self.check_drop(name, f"DROP {kind}")
        self._note(first, f"DROP {kind}", "Drop")

    def _drop_column(self, first: int) -> None:
        words = self.words
        words.take("COLUMN")
        if_there = words.take("IF", "EXISTS")
        name = words.name("DROP COLUMN")
        where = f"DROP COLUMN {name}"
        words.any_of("RESTRICT", "CASCADE")
        self._note(first, where, "Drop")
        at = self._find(name, where)
        if at is None:
            if if_there:
                return
            raise NotFollowed(f"{where}: the table does not have it")
        column = self.columns[at]
        if column.name in self.changed or column.name in self.added:
            raise NotFollowed(f"{where}: it is changed twice")
        check_dropped(self.before, column, where)
        del self.columns[at]
        self.removed.add(fold(column.name))

    def check_drop(self, index: str, where: str) -> None:
        """Make sure that an index that is dropped is not the key, and has no column in row events."""
        before = self.before
        if before.key and (before.key_index is None or fold(before.key_index) == fold(index)):
            raise NotFollowed(f"{where}: it is, or may be, the index that is the key")
        if fold(index) == "primary":
            raise NotFollowed("DROP PRIMARY KEY is not followed")
        if any(c.hidden for c in before.columns):
            raise NotFollowed(f"{where}: a unique index of hashes has a column in row events")

    def _rename_index(self, first: int) -> None:
        words = self.words
        if not words.any_of("INDEX", "KEY"):
            words.refuse("RENAME")
        words.name("RENAME INDEX")
        words.expect("TO", "RENAME INDEX")
        words.name("RENAME INDEX")
        if self.before.key and self.before.key_index != "PRIMARY":
            raise NotFollowed("RENAME INDEX: a table without a primary key may get another key by it")
        self._note(first, "RENAME INDEX", "RenameIndex")
