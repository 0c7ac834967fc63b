"""Copy changes from the binlog to the sink tables exactly once: plan, stage and apply batches, and follow DDL."""
