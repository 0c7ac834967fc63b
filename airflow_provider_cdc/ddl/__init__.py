"""Statements in the binlog: which tables they affect, and the definitions that result. No I/O.

``affected_tables.classify_statement`` takes the text of a statement and returns the captured tables that it may change:
in case of doubt, it returns too many rather than too few. ``alter_table.apply_ddl`` takes a definition and an ``ALTER
TABLE``, and returns the next definition, or raises ``DdlNotFollowed``; ``token_cursor`` and ``column_parser`` read the
clauses. ``schema_policy.SchemaPolicy`` says which of these changes the copy gets (``stream.schema_changes``).
``drop_statements`` tells whether a statement certainly drops a table. ``key_predicate`` reads the condition of
``resnapshot --where-key``. Called by ``mysql.binlog.events``, which meets the statements, and by ``apply`` and
``resnapshot``, which act on them.
"""
