"""Result sets of SELECTs, read directly into Arrow columns."""
