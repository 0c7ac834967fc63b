"""What happens to rows on their way from the source to the copy.

``column_values.apply_policy`` takes the values of a column and returns those of the copy: the same, hashed, masked,
truncated, or NULL. ``policy_rules.policy_problem`` says which of these the type of a column allows, and what is refused
for a column of the key. The policies themselves are values of ``model.column_policy``, which also has
``copy_column``, the definition of a column in the copy; ``config.transforms`` reads them from the pipeline, and
``config.hash_key`` the secret key. Everything works on whole Arrow arrays, and the same value gives the same result in
a snapshot, in a batch and in a comparison. The room does no I/O. It knows types of columns, but neither servers nor
sinks.
"""
