"""What a table's definition is behind an ALTER TABLE, by its text. tests/mysql/client/test_alter.py asks servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_cdc.ddl.alter_table import DdlNotFollowed, ServerTraits, StatementSession, apply_ddl
from airflow_provider_cdc.ddl.tokens import Quoting
from airflow_provider_cdc.model.schema import HIDDEN_SUFFIX, Column, TableSchema

COLLATIONS = {"utf8mb4": "utf8mb4_0900_ai_ci", "latin1": "latin1_swedish_ci", "binary": "binary"}
CHARSETS = {**{c: s for s, c in COLLATIONS.items()}, "latin1_bin": "latin1", "utf8mb4_bin": "utf8mb4"}
MYSQL = ServerTraits(False, (9, 7, 0), COLLATIONS, CHARSETS, {"utf8mb4": 4, "latin1": 1, "binary": 1})
MARIADB = replace(MYSQL, mariadb=True, version=(10, 11, 2))
NEW_MARIADB = replace(MARIADB, version=(11, 8, 1))
SESSION = StatementSession(utf8mb4_collation="utf8mb4_0900_ai_ci")

_TEXT = {"charset": "utf8mb4", "collation": "utf8mb4_0900_ai_ci"}
TABLE = TableSchema(
    "d",
    "t",
    (
        Column("id", "int", "int", False),
        Column("a", "varchar", "varchar(20)", True, 20, 80, **_TEXT),  # type: ignore[arg-type]
        Column("n", "int", "int", False),
        Column("e", "enum", "enum('x','y')", True, 1, 4, **_TEXT, members=("x", "y")),  # type: ignore[arg-type]
        Column("é", "int", "int", True),
    ),
    ("id",),
    key_index="PRIMARY",
    comments=(("a", "old"),),
    collation="utf8mb4_0900_ai_ci",
)


def made(
    sql: str, before: TableSchema = TABLE, session: StatementSession = SESSION, server: ServerTraits = MYSQL
) -> TableSchema:
    return apply_ddl(before, sql, "d", session, server).definition


def refused(
    sql: str, before: TableSchema = TABLE, session: StatementSession = SESSION, server: ServerTraits = MYSQL
) -> str:
    with pytest.raises(DdlNotFollowed) as caught:
        apply_ddl(before, sql, "d", session, server)
    return caught.value.reason


def names(found: TableSchema) -> list[str]:
    return [c.name for c in found.columns]


# ---------------------------------------------------------------- columns


def test_a_column_is_added() -> None:
    found = apply_ddl(TABLE, "ALTER TABLE T ADD c VARCHAR(5) COMMENT 'it''s', ADD f INT FIRST", "D", SESSION, MYSQL)
    assert found.table == ("D", "T") and found.added == ("c", "f")
    assert names(found.definition) == ["f", "id", "a", "n", "e", "é", "c"]
    column = found.definition.columns[-1]
    assert column == Column("c", "varchar", "varchar(5)", True, 5, 20, "utf8mb4", "utf8mb4_0900_ai_ci")
    assert found.definition.comments == (("a", "old"), ("c", "it's"))
    assert (found.definition.key, found.definition.key_index) == (("id",), "PRIMARY")


def test_its_place() -> None:
    assert names(made("ALTER TABLE t ADD c INT AFTER ID, ADD f INT AFTER c"))[:3] == ["id", "c", "f"]
    hidden = TABLE.replace(columns=(*TABLE.columns, Column("DB_ROW_HASH_1", "bigint", f"bigint {HIDDEN_SUFFIX}", True)))
    assert names(made("ALTER TABLE t ADD c INT", hidden))[-2:] == ["c", "DB_ROW_HASH_1"]
    assert "not known" in refused("ALTER TABLE t ADD c INT AFTER nothing")


def test_columns_in_brackets() -> None:
    assert names(made("ALTER TABLE t ADD (c INT, f VARCHAR(3) COMMENT 'a, b)', g DECIMAL(3,1))"))[-3:] == [*"cfg"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("INT NOT NULL", "existing rows get a value"),
        ("INT DEFAULT 5", "existing rows get its DEFAULT"),
        ("INT UNIQUE", "UNIQUE is not followed"),
        ("INT AS (n + 1)", "AS is not followed"),
        ("INT AUTO_INCREMENT", "AUTO_INCREMENT is not followed"),
        ("SERIAL", "SERIAL type"),
        ("TIMESTAMP", "explicit_defaults_for_timestamp"),
        ("TEXT(100)", "a length of TEXT"),
        ("CHAR(3) BINARY", "a part of it"),
        ("VARCHAR(3) CHARACTER SET binary", "character set binary"),
        ("VARCHAR(3) CHARACTER SET latin1 COLLATE utf8mb4_bin", "does not belong to its character set"),
        ("VARCHAR(20000)", "too long"),
        ("INT COMMENT 'bell \\Z'", "comment"),
        ("ENUM('a?')", "a member"),
        ("ENUM('ä') CHARACTER SET latin1", "a member"),
        ("INT COMMENT 'x' 'y'", "a part of it"),
        ("INT NULL NULL", "twice"),
        ("INT SECONDARY_ENGINE", "a part of it"),
    ],
)
def test_columns_that_are_not_added(text: str, reason: str) -> None:
    assert reason in refused(f"ALTER TABLE t ADD c {text}")


def test_what_a_name_may_be() -> None:
    assert "already has it" in refused("ALTER TABLE t ADD A INT")
    assert "few characters" in refused("ALTER TABLE t MODIFY É INT")
    assert names(made("ALTER TABLE t ADD `first` INT, ADD comment INT AFTER `first`"))[-2:] == ["first", "comment"]


def test_the_default_collation_is_no_part_of_the_definition() -> None:
    other = TABLE.replace(collation=None)
    assert other == TABLE and other.fingerprint() == TABLE.fingerprint()
    assert "its collation is not known" in refused("ALTER TABLE t ADD c TEXT", other)
    assert TableSchema.from_json(TABLE.to_json()).collation == TABLE.collation


def test_a_collation_that_sessions_choose() -> None:
    sql = "ALTER TABLE t ADD c TEXT CHARACTER SET utf8mb4"
    other = replace(SESSION, utf8mb4_collation="utf8mb4_bin")
    assert made(sql, session=other).columns[-1].collation == "utf8mb4_bin"
    assert "is not known" in refused(sql, session=replace(SESSION, utf8mb4_collation=None))
    assert made(sql, server=MARIADB).columns[-1].collation == "utf8mb4_0900_ai_ci"
    assert "character_set_collations" in refused(sql, server=NEW_MARIADB)


def test_modes() -> None:
    real = "ALTER TABLE t ADD c REAL"
    assert made(real).columns[-1].data_type == "double"
    assert made(real, session=replace(SESSION, real_as_float=True)).columns[-1].data_type == "float"
    assert "sql_mode" in refused(real, session=replace(SESSION, standard_types=False))
    ansi = replace(SESSION, quoting=Quoting(ansi_quotes=True))
    assert names(made('ALTER TABLE "t" ADD "c ""d" INT', session=ansi))[-1] == 'c "d'
    assert "a text" in refused('ALTER TABLE t ADD c INT COMMENT "x"', session=ansi)
    plain = replace(SESSION, quoting=Quoting(backslash_escapes=False))
    assert made("ALTER TABLE t ADD c INT COMMENT 'x\\'", session=plain).comments[-1] == ("c", "x\\")
    assert made("ALTER TABLE t ADD c INT COMMENT 'a\\''''", session=SESSION).comments[-1] == ("c", "a''")


# ---------------------------------------------------------------- columns that were there


def test_what_a_column_may_become() -> None:
    found = made("ALTER TABLE t MODIFY a VARCHAR(70) DEFAULT 'x', CHANGE n n INT")
    assert (found.columns[1].length, found.columns[1].octets, found.columns[2].nullable) == (70, 280, True)
    assert found.comments == ()
    assert made("ALTER TABLE t MODIFY e ENUM('x','y','z')").columns[3].members == ("x", "y", "z")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MODIFY a VARCHAR(19)", "another type"),
        ("MODIFY a TEXT", "another type"),
        ("MODIFY a VARCHAR(20) COLLATE utf8mb4_bin", "another type or character set"),
        ("MODIFY A VARCHAR(20)", "renaming a column"),
        ("CHANGE a b VARCHAR(20)", "renaming a column"),
        ("MODIFY a VARCHAR(20) FIRST", "moving a column"),
        ("MODIFY a VARCHAR(20) NOT NULL", "becomes NOT NULL"),
        ("MODIFY e ENUM('y','x')", "another type"),
        ("MODIFY n BIGINT", "another type"),
        ("MODIFY id INT", "a nullable key column"),
        ("MODIFY n INT NOT NULL AUTO_INCREMENT", "AUTO_INCREMENT is not followed"),
        ("MODIFY nothing INT", "does not have it"),
    ],
)
def test_what_a_column_may_not_become(text: str, reason: str) -> None:
    assert reason in refused(f"ALTER TABLE t {text}")


def test_null_needs_a_known_primary_key() -> None:
    for index in (None, "u"):
        assert "without a primary key" in refused("ALTER TABLE t MODIFY n INT", TABLE.replace(key_index=index))


def test_a_longer_key() -> None:
    keyed = TABLE.replace(columns=(TABLE.columns[1].replace(nullable=False), *TABLE.columns[2:]), key=("a",))
    assert made("ALTER TABLE t MODIFY a VARCHAR(191) NOT NULL", keyed).columns[0].length == 191
    assert "too long" in refused("ALTER TABLE t MODIFY a VARCHAR(192) NOT NULL", keyed)
    listed = TABLE.replace(columns=(TABLE.columns[3].replace(nullable=False),), key=("e",))
    assert "members" in refused("ALTER TABLE t MODIFY e ENUM('x','y','z') NOT NULL", listed)


def test_members_with_a_question_mark() -> None:
    """The one in the catalog may be another character, of which rows get another text then."""
    column = TABLE.columns[3].replace(members=("x", "?"), column_type="enum('x','?')")
    before = TABLE.replace(columns=(TABLE.columns[0], column))
    assert "a member" in refused("ALTER TABLE t MODIFY e ENUM('x','?','z')", before)


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t ADD INDEX i (a(3) DESC, n) COMMENT 'x', DROP KEY k, RENAME INDEX j TO k",
        "ALTER TABLE t ADD CONSTRAINT c CHECK (n > 0), ALTER n SET DEFAULT 3, ALTER COLUMN a DROP DEFAULT",
        "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES d.p (id) ON DELETE NO ACTION, DROP FOREIGN KEY f, DROP CHECK c",
        "ALTER TABLE t ENGINE=InnoDB COMMENT 'x' AUTO_INCREMENT=4, ROW_FORMAT DYNAMIC, FORCE, LOCK NONE",
        "CREATE INDEX i ON d.t (a) ALGORITHM=INPLACE",
        "DROP INDEX i ON t",
    ],
)
def test_what_changes_nothing(sql: str) -> None:
    found = made(sql)
    assert (found, found.comments, found.collation) == (TABLE, TABLE.comments, TABLE.collation)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("ALTER TABLE t DROP COLUMN id", "part of the key"),
        ("ALTER TABLE t DROP nothing", "does not have it"),
        ("ALTER TABLE t DROP a, ADD a INT", "dropped by the same statement"),
        ("ALTER TABLE t ADD c INT, DROP c", "changed twice"),
        ("ALTER TABLE t RENAME TO u", "RENAME is not followed"),
        ("ALTER TABLE t RENAME COLUMN a TO b", "RENAME COLUMN is not followed"),
        ("ALTER TABLE t CONVERT TO CHARACTER SET latin1", "CONVERT TO CHARACTER SET is not followed"),
        ("ALTER TABLE t ADD UNIQUE (a)", "ADD UNIQUE is not followed"),
        ("ALTER TABLE t ADD PRIMARY KEY (a)", "ADD PRIMARY KEY is not followed"),
        ("ALTER TABLE t DROP PRIMARY KEY", "DROP PRIMARY KEY is not followed"),
        ("ALTER TABLE t DROP INDEX `PRIMARY`", "the index that is the key"),
        ("DROP INDEX `primary` ON t", "the index that is the key"),
        ("ALTER TABLE t PARTITION BY HASH (id)", "PARTITION is not followed"),
        ("ALTER TABLE t DISCARD TABLESPACE", "DISCARD is not followed"),
        ("ALTER TABLE t ADD SYSTEM VERSIONING", "ADD SYSTEM VERSIONING is not followed"),
        ("ALTER TABLE t ENGINE=MyISAM", "only InnoDB is followed"),
        ("ALTER TABLE t ADD INDEX i ((n + 1))", "ADD INDEX"),
        ("ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES p (id) ON DELETE CASCADE", "CASCADE"),
        ("ALTER IGNORE TABLE t ADD c INT", "IGNORE is not followed"),
        ("ALTER TABLE other ADD c INT", "another table"),
        ("ALTER TABLE x.t ADD c INT", "another table"),
        ("CREATE UNIQUE INDEX i ON t (a)", "UNIQUE"),
        ("ALTER TABLE t ADD c TEXT, CHARSET latin1", "changes the default collation"),
        ("ALTER TABLE t /*!99999 ADD c INT */", "only other servers execute"),
        ("ALTER TABLE t /*M!100000 ADD c INT */", "only other servers execute"),
        ("ALTER TABLE t ADD c INT COMMENT '\udc80'", "characters that cannot be decoded"),
        ("ALTER TABLE t ADD c INT COMMENT '😀'", "the catalog cannot hold"),
        ("ALTER TABLE t FORCE; DROP TABLE t", "between two clauses"),
        ("DROP TABLE t", "neither"),
        ("", "neither"),
    ],
)
def test_what_is_not_followed(sql: str, reason: str) -> None:
    assert reason in refused(sql)


def test_the_default_collation() -> None:
    assert made("ALTER TABLE t DEFAULT CHARSET latin1").collation == "latin1_swedish_ci"
    assert made("ALTER TABLE t COLLATE latin1_bin, CHARACTER SET = latin1").collation == "latin1_bin"


def test_version_comments() -> None:
    assert names(made("ALTER TABLE t /*!80000 ADD c INT */"))[-1] == "c"
    assert names(made("ALTER TABLE t /*M!100000 ADD c INT */", server=MARIADB))[-1] == "c"
    assert "only other servers" in refused("ALTER TABLE t /*!50701 ADD c INT */", server=MARIADB)


def test_if_exists() -> None:
    found = apply_ddl(TABLE, "ALTER TABLE t ADD IF NOT EXISTS a INT, ADD IF NOT EXISTS c INT", "d", SESSION, MARIADB)
    assert found.added == ("c",) and names(found.definition)[:-1] == names(TABLE)


def test_a_key_that_is_not_the_primary_one() -> None:
    keyed = TABLE.replace(key=("n",), key_index="u")
    for sql in ("ALTER TABLE t RENAME INDEX i TO j", "ALTER TABLE t ALTER INDEX i INVISIBLE"):
        assert "the key of a table" in refused(sql, keyed)
    assert "the index that is the key" in refused("ALTER TABLE t DROP CONSTRAINT U", keyed)
    assert "or may be" in refused("ALTER TABLE t DROP INDEX i", keyed.replace(key_index=None))
    assert made("ALTER TABLE t DROP INDEX i", keyed) == keyed


def test_a_unique_index_of_hashes() -> None:
    hidden = TABLE.replace(columns=(*TABLE.columns, Column("DB_ROW_HASH_1", "bigint", f"bigint {HIDDEN_SUFFIX}", True)))
    assert "hashes" in refused("ALTER TABLE t DROP INDEX i", hidden, server=MARIADB)
    assert "hashes" in refused("ALTER TABLE t MODIFY a VARCHAR(800)", server=MARIADB)


def test_dates_of_the_old_format() -> None:
    old = TABLE.replace(columns=(*TABLE.columns, Column("o", "time", "time /* mariadb-5.3 */", True)))
    assert "old format" in refused("ALTER TABLE t FORCE", old, server=MARIADB)


def test_reasons_tell_no_secrets() -> None:
    for sql in (
        "ALTER TABLE t ADD c INT COMMENT 'secret' secret",
        "ALTER TABLE t secret",
        "ALTER TABLE t ADD c secret",
        "ALTER TABLE t ADD c ENUM('secret', secret)",
        "ALTER TABLE t CONNECTION='secret'",
        "ALTER TABLE t ALTER n SET DEFAULT secret",
    ):
        assert "secret" not in refused(sql)


def test_both_parsers_must_read_it() -> None:
    assert "both parsers" in refused("ALTER TABLE t ADD c MIDDLEINT")
