"""Columns that a copy cannot have: ``check`` says so, and a DDL that makes one suspends its table alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.preflight.run import run_preflight
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import SUSPENDS, run, streamed_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database
NAMES = [
    "_CDC_SEQ",
    "_Cdc_Op",
    "_metadata",
    "_MetaData",
    "_tmp_metadata_row_index",
    "__DELTA_internal_is_row_deleted",
    "__delta_rs_file_id__",
]


def test_check_names_the_table_and_the_column(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, server, r"d\..*")
    for name in NAMES:
        run(server, f"ALTER TABLE keyed ADD `{name}` INT")
        (found,) = (f for f in run_preflight(cli.context, spark=False) if f.level == "error")
        assert f"table d.keyed, column {name}: " in found.message and "source.exclude_columns" in found.remedy
        run(server, f"ALTER TABLE keyed DROP `{name}`")


@pytest.mark.parametrize("ddl", ["ADD `{}` INT", "RENAME COLUMN v TO `{}`"])
def test_a_ddl_suspends_its_table_alone(server: MySQLServer, database: str, tmp_path: Path, ddl: str) -> None:
    cli = streamed_copy(server, tmp_path, stream=SUSPENDS)
    run(
        server,
        f"ALTER TABLE keyed {ddl.format('_Cdc_Op')}",
        "UPDATE quiet SET v = 'on' WHERE id = 2",
    )
    why = "RENAME COLUMN is not followed" if "RENAME" in ddl else "column _Cdc_Op: the prefix _cdc_ is used in the sink"
    with pytest.raises(TableSuspendedError, match=why):
        cli.catch_up()
    with pytest.raises(NotReadyError, match="d.keyed, column _Cdc_Op: the prefix _cdc_ is used in the sink"):
        cli.resnapshot("d.keyed")
    assert dict(zip(*(cli.rows("d", "quiet")[c].to_pylist() for c in ("id", "v")), strict=True))[2] == "on"
