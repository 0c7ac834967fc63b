"""Migrations of the state database with Alembic."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_FOLDER = Path(__file__).parent / "migrations"


def upgrade_schema(connection: Connection) -> None:
    """Bring the tables up to date, within the connection's transaction."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = _alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def list_revisions() -> list[str]:
    """Return all revisions that this package knows, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_alembic_config()).walk_revisions()]


def _alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
