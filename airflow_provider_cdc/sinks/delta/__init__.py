"""The Delta sink: tables, slices, resume points and upkeep. Nothing else knows Delta."""
