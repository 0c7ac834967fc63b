"""Result sets of SELECTs, straight into Arrow columns."""
