"""Names of the modes that decide how changes of a table's definition are handled, and of the kinds of changes."""

from __future__ import annotations

#: ``stream.schema_changes``.
EVOLVE, LENIENT, IGNORE, EXCEPTION = SCHEMA_MODES = ("evolve", "lenient", "ignore", "exception")
#: Kinds of changes that a pipeline may apply or not. A renamed column is one dropped and one added.
ADD_COLUMN, DROP_COLUMN, ALTER_TYPE = CHANGE_KINDS = ("add.column", "drop.column", "alter.column.type")
