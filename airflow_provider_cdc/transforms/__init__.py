"""What happens to rows on their way from the source to the copy: which rows are copied, and which of their values.

``copy_rules.CopyRules`` turns the settings of a pipeline into a part of a table's definition, and refuses what does not
fit the table. ``row_transform.RowTransform`` is the pure function from rows as they are read to rows of the copy; the
snapshot, the stream, comparisons and explanations all use it, and no other code changes rows. ``condition`` parses and
evaluates ``transforms.where`` (the parser is in ``condition_parser`` and ``condition_text``, the tree in
``condition_tree``), and ``column_values`` applies ``transforms.columns``, of which ``policy_rules`` says what a column
may have. Everything works on whole Arrow arrays, so the same row gives the same result wherever it comes from. The room
does no I/O, and knows neither servers nor sinks; ``mysql.client.condition_sql`` writes as SQL what a condition implies.
"""
