"""From the binlog to the sink tables, exactly once: plan, stage and apply batches; follow DDL."""
