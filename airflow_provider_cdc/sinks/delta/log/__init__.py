"""The Delta log: commits, checkpoints, features, retention and deletion vectors."""
