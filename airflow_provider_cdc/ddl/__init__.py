"""Statements in the binlog: which tables they affect, and the definitions that result. The room does no I/O.

``affected_tables.classify_statement`` takes the text of a statement and returns the captured tables that it may change:
in case of doubt, it returns too many rather than too few. ``alter_table.apply_ddl`` takes a definition and an ``ALTER
TABLE``, and returns the next definition, or raises ``DdlNotFollowed``; ``token_cursor`` and ``column_parser`` read the
clauses, and ``constant_defaults`` says which value existing rows get in a new column. ``schema_policy.SchemaPolicy``
says which of these changes are applied to the copy (``stream.schema_changes``). ``drop_statements`` tells whether a
statement is certain to drop a table. ``key_predicate`` reads the condition of ``resnapshot --where-key``. The room is
called by ``mysql.binlog.events``, which meets the statements, and by ``apply`` and ``resnapshot``, which act on them.
"""
