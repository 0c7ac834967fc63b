"""The Delta log: commits, checkpoints, features, retention and deletion vectors.

``delta_log.DeltaLog`` reads the newest version of a table's log (files, properties, ``txn`` markers) and writes the
next version only if no other writer has written it; otherwise, the caller decides again. ``checkpoint`` reads every
form of checkpoint, and refuses what it does not understand. ``features`` says which features of the protocol a table
may use, and what each setting needs. ``commit_actions`` adds what other writers' features require. ``deletion_vectors``
writes and reads vectors, ``live_file`` is a data file of a version, and ``retention`` says how long old files stay.
``cross_check`` compares the live files with those that delta-rs finds, before old files are deleted. The room is called
by ``sinks.delta`` only.
"""
