"""From the binlog to the tables, exactly once: batches are planned, staged by tasks and applied; DDL is followed."""
